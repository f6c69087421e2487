//! Whole worlds, each made from a seed: relays on the store in memory, in a time that moves when everybody sleeps, with everything
//! going wrong that can; and a judge. See `docs/simulation.md`.

mod people;
mod probes;
mod sagas;
mod world;

use posthouse_testkit::{
    Flaw,
    simulation::{Lie, judge},
};
use std::io::Write as _;

use world::{Planted, SECOND, World};

/// How many worlds one run of the tests makes, unless `POSTHOUSE_SIM_SEEDS` says otherwise.
const SEEDS: u64 = 500;
/// The same of worlds with sagas.
const SEEDS_WITH_SAGAS: u64 = 200;
/// How many tests share them, so that they run beside each other.
const SHARDS: u64 = 4;
/// A planted mistake is noticed within so many.
const MOST: u64 = 200;

/// What became of a world.
struct Told {
    broken: Vec<String>,
    trace: String,
    dump: String,
}

/// Makes a world, and lets it take this course, which ends with a verdict.
fn lived<C: Future<Output = Vec<String>> + Send + 'static>(
    seed: u64,
    planted: Planted,
    course: impl FnOnce(World) -> C,
) -> Told {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::new(seed, planted);
        let (history, memory) = (world.history.clone(), world.memory.clone());
        // On a task of its own, so that a panic is a verdict like any other.
        let broken = match tokio::spawn(course(world)).await {
            Ok(broken) => broken,
            Err(panic) => vec![format!("the world ended in a panic: {panic:?}")],
        };
        history.close();
        Told {
            broken,
            trace: history.trace(),
            dump: memory.dump(),
        }
    })
}

/// A world that is judged by its history and its tables.
fn live(seed: u64, planted: Planted) -> Told {
    lived(seed, planted, |mut world| async move {
        world.storm().await;
        world.quiet(300 * SECOND).await;
        probes::ask(&mut world).await;
        end(&mut world).await;
        let broken = judge(&world.history, &world.memory, world.calm).await.unwrap();
        broken.iter().map(ToString::to_string).collect()
    })
}

/// The same with sagas, which are judged by what is left with those who take part in them.
fn live_with_sagas(seed: u64, planted: Planted) -> Told {
    lived(seed, planted, |mut world| async move {
        let begun = sagas::fill(&mut world);
        world.storm().await;
        let mut broken = sagas::end_all(&mut world, &begun).await;
        end(&mut world).await;
        broken.extend(sagas::judge(&world, &begun).await);
        broken
    })
}

/// All relays stop.
async fn end(world: &mut World) {
    (0..world.relays.len()).for_each(|at| world.stop(at));
    world.left(30 * SECOND).await;
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Judges every world of this shard, and says how to see again the first that breaks a promise.
fn worlds(shard: u64, most: u64, live: fn(u64, Planted) -> Told) {
    if let Some(seed) = number("POSTHOUSE_SIM_SEED") {
        if seed % SHARDS == shard {
            let told = live(seed, Planted::default());
            std::io::stderr().write_all(told.trace.as_bytes()).unwrap();
            assert!(told.broken.is_empty(), "seed {seed} breaks {:#?}", told.broken);
        }
        return;
    }
    let seeds = 0..number("POSTHOUSE_SIM_SEEDS").unwrap_or(most);
    let mut failed = Vec::new();
    for seed in seeds.filter(|seed| seed % SHARDS == shard) {
        let told = live(seed, Planted::default());
        if !told.broken.is_empty() {
            failed.push((seed, told));
        }
    }
    let Some((seed, first)) = failed.first() else { return };
    let all: String = failed
        .iter()
        .map(|(seed, told)| format!("  {seed}: {}\n", told.broken[0]))
        .collect();
    panic!(
        "{}\nseed {seed} breaks {:#?}\nall that fail:\n{all}to see it again: {AGAIN}",
        first.trace,
        first.broken,
        AGAIN = format_args!(
            "POSTHOUSE_SIM_SEED={seed} cargo test -p posthouse --test examples simulation::worlds -- --nocapture"
        ),
    );
}

#[test]
fn worlds_of_the_first_quarter_keep_every_promise() {
    worlds(0, SEEDS, live);
}

#[test]
fn worlds_of_the_second_quarter_keep_every_promise() {
    worlds(1, SEEDS, live);
}

#[test]
fn worlds_of_the_third_quarter_keep_every_promise() {
    worlds(2, SEEDS, live);
}

#[test]
fn worlds_of_the_last_quarter_keep_every_promise() {
    worlds(3, SEEDS, live);
}

#[test]
fn worlds_with_sagas_of_the_first_half_keep_every_promise() {
    (0..SHARDS / 2).for_each(|shard| worlds(shard, SEEDS_WITH_SAGAS, live_with_sagas));
}

#[test]
fn worlds_with_sagas_of_the_second_half_keep_every_promise() {
    (SHARDS / 2..SHARDS).for_each(|shard| worlds(shard, SEEDS_WITH_SAGAS, live_with_sagas));
}

/// Else a seed that fails could not be looked at.
#[test]
fn a_seed_makes_the_same_history_again() {
    for seed in 0..8 {
        let (one, two) = (live(seed, Planted::default()), live(seed, Planted::default()));
        let differs = one.trace.lines().zip(two.trace.lines()).find(|(one, two)| one != two);
        assert_eq!(differs, None, "seed {seed}");
        assert!(one.trace == two.trace && one.dump == two.dump, "seed {seed}");
    }
}

/// Asserts that the judge notices what was planted, in one of the first worlds.
fn assert_noticed(what: &dyn std::fmt::Debug, planted: Planted) {
    assert_noticed_in(live, what, planted);
}

fn assert_noticed_in(live: fn(u64, Planted) -> Told, what: &dyn std::fmt::Debug, planted: Planted) {
    let noticed = (0..MOST).find_map(|seed| Some((seed, live(seed, planted).broken.into_iter().next()?)));
    let (seed, broken) = noticed.unwrap_or_else(|| panic!("{what:?} is not noticed in {MOST} worlds"));
    let line = format!("{what:?} is noticed in world {seed}: {broken:.200}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Those that can be noticed here: the others are about follow-ups and about what operators are told, and one about a run of which
/// a part was renewed, which a relay that renews everything together meets too rarely. The suite notices them all.
#[test]
fn a_flaw_of_the_store_is_noticed() {
    let flaws = [
        Flaw::NoFence,
        Flaw::FenceByWorker,
        Flaw::RepairWithoutGuard,
        Flaw::CountBasedKeyLimit,
        Flaw::CursorPolling,
        Flaw::DedupeByLock,
        Flaw::AttemptsAtSettle,
        Flaw::HeadDoesNotHold,
        Flaw::RunGoesOn,
        Flaw::NoTurns,
    ];
    for flaw in flaws {
        assert_noticed(
            &flaw,
            Planted {
                flaw: Some(flaw),
                ..Planted::default()
            },
        );
    }
}

/// Two who decide on the same saga, steps that are sent after the deadline, and participants who say what they did not do.
#[test]
fn a_flaw_that_sagas_suffer_from_is_noticed() {
    let planted = [
        Planted {
            flaw: Some(Flaw::SagaWithoutVersion),
            ..Planted::default()
        },
        Planted {
            flaw: Some(Flaw::StepsNeverLapse),
            ..Planted::default()
        },
        Planted {
            destination_lies: true,
            ..Planted::default()
        },
    ];
    for one in planted {
        assert_noticed_in(live_with_sagas, &one.flaw, one);
    }
}

#[test]
fn a_store_that_lies_is_noticed() {
    for lie in [Lie::SettlesNothing, Lie::RenewsNothing, Lie::GrantsTwice] {
        assert_noticed(
            &lie,
            Planted {
                lie: Some(lie),
                ..Planted::default()
            },
        );
    }
}

#[test]
fn a_destination_that_lies_is_noticed() {
    assert_noticed(
        &"delivered, and is not",
        Planted {
            destination_lies: true,
            ..Planted::default()
        },
    );
}
