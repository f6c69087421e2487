//! `posthouse relay`: the relay of the library, by the configuration, until somebody stops it.

mod answers;
mod explicit;
mod log;
mod measures;
mod routes;
mod upkeep;

use posthouse::{
    AnyStore, Error, Relay,
    relay::{Control, Destination},
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    cli,
    config::{self, Config, Loaded, Sources, watch},
    exit::{Exit, Failure},
    output::Output,
};
use answers::State;
use routes::Routes;

/// Runs until it is told to stop.
pub fn run(args: &cli::Relay, sources: Sources, out: &Output) -> Result<(), Failure> {
    let loaded = config::load(&sources)?;
    loaded.warnings.iter().for_each(|problem| out.problem(problem));
    if loaded.config.routes.is_empty() && loaded.config.explicit.http.is_empty() {
        let failure = Failure::new("no route is configured, so there is nothing that a relay could deliver");
        return Err(failure.help(
            "write a [[route]] with topic and to, or list hosts that topics may name ([explicit] http); posthouse.example.toml shows all keys",
        ));
    }
    log::begin(&loaded.config.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(serve(args, sources, loaded, out));
    // What hangs in a system call (a lookup of a name) is not waited for.
    runtime.shutdown_timeout(Duration::from_millis(500));
    result
}

async fn serve(args: &cli::Relay, sources: Sources, loaded: Loaded, out: &Output) -> Result<(), Failure> {
    let cancel = CancellationToken::new();
    let mut helpers = JoinSet::new();
    // Before anything that takes time, so that a signal also stops a relay that is still connecting.
    helpers.spawn(signals(cancel.clone())?);
    if args.until_stdin_closes {
        until_stdin_closes(cancel.clone());
    }
    let mut routes = Routes::default();
    let planned = routes.plan(&loaded.config)?;
    let opened = cancel.run_until_cancelled(open(&loaded.config)).await;
    let Some(stores) = opened.transpose()? else {
        tracing::info!("stopped before the stores were open");
        return Ok(());
    };
    let mut relay = builder(&loaded.config, &stores)?;
    for (topic, to) in planned {
        relay = relay.route(topic, to);
    }
    let measured = measures::begin()?;
    if let Some((prefix, maker)) = maker(&loaded.config) {
        relay = relay.explicit(prefix, maker);
    }
    let state = State::new(relay.control(), stores.clone(), cancel.clone(), measured.clone());
    let state = Arc::new(state);
    let at = match loaded.config.admin.bind {
        Some(address) => {
            let (listener, at) = bind(address).await?;
            helpers.spawn(answers::serve(listener, state.clone()));
            Some(at)
        }
        None => None,
    };
    upkeep::spawn(&mut helpers, &loaded.config, &stores, measured);
    helpers.spawn(reload(sources, loaded.clone(), routes, relay.control(), state)?);
    tell(&loaded.config, at, out);
    relay.run(cancel).await?;
    tracing::info!("stopped");
    helpers.shutdown().await;
    Ok(())
}

/// Which database is which, where there are several.
pub(crate) struct Opened {
    /// Its name in the configuration; empty where there is one.
    pub name: String,
    pub store: AnyStore,
}

async fn open(config: &Config) -> Result<Arc<[Opened]>, Failure> {
    let mut opened = Vec::with_capacity(config.stores.len());
    for store in &config.stores {
        let direct = store.direct_url.as_ref().map(config::Secret::expose);
        opened.push(Opened {
            name: store.name.clone().unwrap_or_default(),
            store: AnyStore::open_past_pooler(store.url.expose(), direct).await?,
        });
    }
    Ok(opened.into())
}

fn builder(config: &Config, stores: &[Opened]) -> Result<Relay, Failure> {
    let mut relay: Option<Relay> = None;
    for (opened, store) in stores.iter().zip(&config.stores) {
        let next = match relay {
            None => Relay::builder(opened.store.store()),
            Some(relay) => relay.also(opened.store.store()),
        };
        relay = Some(
            store
                .namespaces
                .iter()
                .fold(next, |relay, namespace| relay.namespace(namespace)),
        );
    }
    let Some(relay) = relay else {
        return Err(Failure::new("the configuration names no store"));
    };
    let outbox = &config.outbox;
    let relay = match &outbox.name {
        Some(name) => relay.name(name),
        None => relay,
    };
    let relay = relay
        .lease(outbox.lease)
        .batch(outbox.batch)
        .concurrency(outbox.concurrency)
        .poll(outbox.poll)
        .grace(outbox.grace)
        .max_bytes(outbox.in_flight_bytes);
    let tenants = &config.tenants;
    let relay = tenants.max_in_flight.into_iter().fold(relay, Relay::tenants_limit);
    let caps = tenants.caps.iter();
    let relay = caps.fold(relay, |relay, (tenant, most)| relay.tenant_limit(tenant, *most));
    let weights = &tenants.weights;
    Ok(weights
        .iter()
        .fold(relay, |relay, (tenant, weight)| relay.weight(tenant, *weight)))
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let refused = |error: std::io::Error| {
        let failure = Failure::new(format!("admin.bind: {address} cannot be listened at: {error}"));
        failure.help("choose another address, port 0 for any that is free, or \"off\"")
    };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let at = listener.local_addr().map_err(refused)?;
    Ok((listener, at))
}

/// SIGTERM and SIGINT stop it; the second of them stops it at once, whatever is under way.
fn signals(cancel: CancellationToken) -> Result<impl Future<Output = ()> + Send, Failure> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        for again in [false, true] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if again {
                tracing::warn!("told to stop again: leases that are held run out by themselves");
                std::process::exit(Exit::Interrupted as i32);
            }
            tracing::info!("told to stop: nothing new is claimed, what is not sent goes back");
            cancel.cancel();
        }
    })
}

/// Whoever started it holds the other end, and the system closes it however they end. A thread of its own, because a read of
/// standard input cannot be given up.
fn until_stdin_closes(cancel: CancellationToken) {
    std::thread::spawn(move || {
        // An error is an end, too.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        tracing::info!("standard input has ended, and so does this");
        cancel.cancel();
    });
}

/// Takes up what changes in the configuration, if all of it is sound.
fn reload(
    sources: Sources,
    loaded: Loaded,
    mut routes: Routes,
    control: Control,
    state: Arc<State>,
) -> Result<impl Future<Output = ()> + Send, Failure> {
    let mut watch = watch::watch(sources, Ok(loaded.clone()))?;
    let mut in_force = loaded;
    let mut told = None;
    Ok(async move {
        loop {
            let next = match watch.next().await {
                Ok(next) => next,
                Err(problems) if told.as_ref() == Some(&problems) => {
                    tracing::warn!("the configuration was read again, and is still not sound");
                    continue;
                }
                Err(problems) => {
                    for problem in problems.all.iter().filter(|problem| !problem.warning) {
                        let (place, message) = (problem.place.to_string(), &problem.message);
                        tracing::error!(
                            place,
                            key = problem.key,
                            "the configuration is not sound, and the one before stays in force: {message}"
                        );
                    }
                    state.configured(false);
                    told = Some(problems);
                    continue;
                }
            };
            told = None;
            let changes = config::diff(&in_force, &next);
            let taken_up = take_up(&next.config, &mut routes, &control);
            if let Err(failure) = taken_up {
                tracing::error!(
                    "the routes are not sound, and those before stay in force: {}",
                    failure.message
                );
                state.configured(false);
                continue;
            }
            for change in &changes.restart {
                tracing::warn!(key = change.key, "changed, and waits for a restart");
            }
            for change in &changes.migrate {
                tracing::warn!(
                    key = change.key,
                    "changed, and takes effect when posthouse migrate has written it into the store"
                );
            }
            tracing::info!(changed = changes.live.len(), "the configuration was read again");
            state.configured(true);
            in_force = next;
        }
    })
}

/// What makes destinations of topics that name them, if any may.
fn maker(
    config: &Config,
) -> Option<(
    String,
    impl Fn(&str) -> Result<Destination, Error> + Send + Sync + use<>,
)> {
    let (outbox, breaker) = (config.outbox.clone(), config.breaker.policy());
    // As routes have it; shorter where leases are short.
    let timeout = Duration::from_secs(10).min(outbox.lease * 4 / 5);
    let dress = move |to: Destination| {
        let to = to.timeout(timeout).retry(outbox.retry.clone()).without_breaker();
        breaker.into_iter().fold(to, Destination::breaker)
    };
    let listed = !config.explicit.http.is_empty();
    listed.then(|| {
        (
            explicit::PREFIX.to_owned(),
            explicit::maker(config.explicit.clone(), timeout, dress),
        )
    })
}

/// What a relay takes up while it runs.
fn take_up(config: &Config, routes: &mut Routes, control: &Control) -> Result<(), Failure> {
    control.replace_routes(routes.plan(config)?)?;
    let tenants = &config.tenants;
    control.replace_tenant_limits(tenants.caps.clone(), tenants.max_in_flight)?;
    control.replace_explicit(maker(config));
    Ok(())
}

fn tell(config: &Config, at: Option<SocketAddr>, out: &Output) {
    let count = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let what = format!(
        "{}, {}",
        count(config.routes.len(), "route"),
        count(config.stores.len(), "store")
    );
    match at {
        Some(at) => out.note(&format!("relaying: {what}; answering at http://{at}")),
        None => out.note(&format!("relaying: {what}")),
    }
}
