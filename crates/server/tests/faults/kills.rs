//! SIGKILL at each point of the engine: before and after a claim, a send, a settlement, a renewal, a repair. Another relay finishes.

use super::{On, Told, World, both, receiver::Then, wait};

/// What the receiver must have seen more than once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Twice {
    /// Nothing: nobody can have sent it before the death.
    Nothing,
    /// Something: it was sent, and the store did not know.
    Something,
    /// It depends on what was under way.
    Depends,
}

/// A relay is killed there, and another one finishes.
fn killed_at(on: On, point: &str, nth: u32, twice: Twice) {
    let world = World::new(on);
    let ids = world.enqueue(16);
    world.relay(&Told::new("first").dies(point, nth)).killed();
    finish(&world, &ids, twice);
}

/// A relay is killed at a renewal, while its sends take long.
fn killed_renewing(on: On, point: &str) {
    let world = World::new(on);
    world.receiver.does(|_| Then::Wait);
    let ids = world.enqueue(16);
    // A send lasts longer than it is to the next renewal; and none needs one before it begins.
    let told = Told {
        lease_ms: 3000,
        route: "timeout_ms = 2000".to_owned(),
        ..Told::new("first")
    };
    world.relay(&told.dies(point, 1)).killed();
    world.receiver.open();
    finish(&world, &ids, Twice::Something);
}

/// A relay dies with leases, and the one that takes them back dies of that.
fn killed_repairing(on: On, point: &str) {
    let world = World::new(on);
    let ids = world.enqueue(16);
    world.relay(&Told::new("first").dies("after_claim", 1)).killed();
    let store = world.store.store();
    wait("leases have run out", || {
        !world.block(store.expired(0, 10)).unwrap().is_empty()
    });
    world.relay(&Told::new("second").dies(point, 1)).killed();
    finish(&world, &ids, Twice::Depends);
}

fn finish(world: &World, ids: &[posthouse::MessageId], twice: Twice) {
    world.finish(ids);
    match twice {
        Twice::Nothing => assert_eq!(world.duplicates(), 0),
        Twice::Something => assert!(world.duplicates() > 0),
        Twice::Depends => {}
    }
}

both! {
    before_the_first_claim: killed_at("before_claim", 1, Twice::Nothing);
    before_a_later_claim: killed_at("before_claim", 2, Twice::Depends);
    after_the_first_claim: killed_at("after_claim", 1, Twice::Nothing);
    after_a_later_claim: killed_at("after_claim", 2, Twice::Depends);
    before_a_send: killed_at("before_send", 1, Twice::Nothing);
    after_a_send: killed_at("after_send", 2, Twice::Something);
    before_a_settlement: killed_at("before_settle", 1, Twice::Something);
    after_a_settlement: killed_at("after_settle", 1, Twice::Depends);
    before_a_renewal: killed_renewing("before_renew");
    after_a_renewal: killed_renewing("after_renew");
    before_a_repair: killed_repairing("before_repair");
    after_a_repair: killed_repairing("after_repair");
}
