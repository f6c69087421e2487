//! `posthouse` on SurrealDB: what operators type, in a folder and on a server.

use std::{
    path::Path,
    process::{Command, Output},
};

use crate::beside::{Server, program};

struct Posthouse<'a> {
    url: &'a str,
    folder: &'a Path,
}

impl Posthouse<'_> {
    fn run(&self, args: &[&str]) -> Output {
        Command::new(program("posthouse"))
            .args(["--store", self.url])
            .args(args)
            .current_dir(self.folder)
            .env_remove("POSTHOUSE_STORE__URL")
            .output()
            .unwrap()
    }

    /// What it prints, when it succeeds.
    fn says(&self, args: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.run(args);
        let (out, err) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
        assert!(status.success(), "{args:?}: {out}{err}");
        assert!(
            !(out.clone() + &err).contains("s3cret"),
            "{args:?} tells the password: {out}{err}"
        );
        out
    }

    /// Its exit code, and what it complains about.
    fn fails(&self, args: &[&str]) -> (Option<i32>, String) {
        let Output { status, stderr, .. } = self.run(args);
        (status.code(), String::from_utf8(stderr).unwrap())
    }
}

fn a_day_of_an_operator(posthouse: &Posthouse<'_>) {
    let plan = posthouse.says(&["migrate", "--dry-run"]);
    assert!(plan.contains("tables"), "{plan}");
    posthouse.says(&["migrate"]);
    let id = posthouse.says(&[
        "enqueue",
        "order.placed",
        "--data",
        "{\"order\": 42}",
        "--key",
        "order-42",
    ]);
    let id = id.split_whitespace().find(|word| word.len() == 36).unwrap().to_owned();
    assert!(posthouse.says(&["messages", "list"]).contains("order.placed"));
    assert!(posthouse.says(&["messages", "show", &id]).contains("order-42"));
    assert!(posthouse.says(&["messages", "explain", &id]).contains("no relay"));
    posthouse.says(&["messages", "cancel", &id, "--note", "wrong"]);
    assert!(
        posthouse
            .says(&["dead", "list", "--reason", "cancelled"])
            .contains("order.placed")
    );
    posthouse.says(&["dead", "replay", &id, "--note", "after all"]);
    assert!(posthouse.says(&["audit"]).contains("replay"));
    let stats = posthouse.says(&["stats", "--json"]);
    assert!(stats.contains("\"ready\""), "{stats}");
    posthouse.says(&["repair"]);
    posthouse.says(&["prune", "--older-than", "1h", "--yes", "--note", "a test"]);
    posthouse.says(&["ledger", "list"]);
    posthouse.says(&["saga", "list"]);
    let (code, said) = posthouse.fails(&["messages", "show", "018f0000-0000-7000-8000-000000000000"]);
    assert_eq!(code, Some(3), "{said}");
    let (code, said) = posthouse.fails(&["migrate", "--roles"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("DEFINE USER"), "{said}");
}

#[test]
fn a_folder_is_operated() {
    let folder = tempfile::tempdir().unwrap();
    let posthouse = Posthouse {
        url: "surrealkv://shop.db?namespace=shop&database=orders",
        folder: folder.path(),
    };
    let (code, said) = posthouse.fails(&["messages", "list"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("there is no database") && said.contains("migrate"),
        "{said}"
    );
    a_day_of_an_operator(&posthouse);
    let told = posthouse.says(&["doctor"]);
    assert!(
        told.contains("a commit survives a crash of the machine (engine surrealkv, sync every)"),
        "{told}"
    );
    let lazy = Posthouse {
        url: "surrealkv://shop.db?namespace=shop&database=orders&sync=never",
        ..posthouse
    };
    let told = lazy.says(&["doctor"]);
    assert!(told.contains("sync never: a crash of the machine may lose"), "{told}");
    assert!(told.contains("sync=every"), "{told}");
}

#[tokio::test]
async fn a_server_is_operated() {
    let (server, folder) = (Server::start("mem://").await, tempfile::tempdir().unwrap());
    let url = server.url("shop/orders");
    let posthouse = Posthouse {
        url: &url,
        folder: folder.path(),
    };
    a_day_of_an_operator(&posthouse);
    let told = posthouse.says(&["doctor"]);
    assert!(told.contains("up to the settings of the server"), "{told}");
    let wrong = server.url_of("root:s3cret-not", "shop/orders");
    let (code, said) = Posthouse {
        url: &wrong,
        folder: folder.path(),
    }
    .fails(&["messages", "list"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("knows no user") && !said.contains("s3cret"), "{said}");
}

#[test]
fn a_url_that_is_not_right_is_refused_with_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    for (url, told) in [
        ("surrealdb://localhost", "a namespace and a database"),
        ("surrealkv://", "names no folder"),
        ("surrealkv://a?sync=rarely", "a sync that is none of"),
        ("mem://", "is of no kind that is known"),
    ] {
        let posthouse = Posthouse {
            url,
            folder: folder.path(),
        };
        let (code, said) = posthouse.fails(&["messages", "list"]);
        assert_eq!(code, Some(2), "{url}: {said}");
        assert!(said.contains(told), "{url}: {said}");
    }
}
