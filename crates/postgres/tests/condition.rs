//! What the store tells of its server.

use crate::fixture::{PostgresFixture, session_at, url_as};

/// A role may be dropped while a session of it goes on: that has no name any more, and holds rows all the same.
#[tokio::test]
async fn a_session_of_a_dropped_role_is_told_of() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let role = format!("{}_gone", fx.schema);
    fx.run(&format!("CREATE ROLE {role} LOGIN")).await;
    let (gone, _driver) = session_at(&url_as(&role)).await;
    gone.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    let pid: i32 = gone.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    fx.run(&format!("DROP ROLE {role}")).await;

    let holders = store.condition().await.unwrap().holders;
    let holder = holders.iter().find(|holder| holder.pid == Some(pid)).unwrap();
    assert!(holder.name.starts_with("dropped role "), "{holder:?}");
}
