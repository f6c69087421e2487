//! What the relay answers to those who watch over it: `/livez`, `/readyz`, `/metrics`.

use axum::{
    Router,
    extract::State as Shared,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use metrics_exporter_prometheus::PrometheusHandle;
use posthouse::relay::Control;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{Opened, measures};

/// A store that has not answered a claim for so long is not well.
const SILENCE: Duration = Duration::from_secs(10);

/// What the answers are made of.
pub struct State {
    control: Control,
    stores: Arc<[Opened]>,
    stopping: CancellationToken,
    sound: AtomicBool,
    measures: PrometheusHandle,
}

impl State {
    pub fn new(
        control: Control,
        stores: Arc<[Opened]>,
        stopping: CancellationToken,
        measures: PrometheusHandle,
    ) -> Self {
        Self {
            control,
            stores,
            stopping,
            sound: AtomicBool::new(true),
            measures,
        }
    }

    /// Whether the configuration that was read last is in force.
    pub fn configured(&self, sound: bool) {
        self.sound.store(sound, Ordering::Relaxed);
        measures::configuration_sound(sound);
    }

    /// What keeps it from being ready, and what is worth knowing besides.
    fn reasons(&self) -> (Vec<String>, Vec<String>) {
        let (mut reasons, mut notes) = (Vec::new(), Vec::new());
        if self.stopping.is_cancelled() {
            reasons.push("stopping".to_owned());
        }
        let silences = self.control.silences();
        if silences.is_empty() {
            reasons.push("starting".to_owned());
        }
        for (opened, silence) in self.stores.iter().zip(silences) {
            if silence >= SILENCE {
                let name = if opened.name.is_empty() { "store" } else { &opened.name };
                reasons.push(format!("{name}: no answer for {} seconds", silence.as_secs()));
            }
        }
        if !self.sound.load(Ordering::Relaxed) {
            notes.push("the configuration was changed and is not sound; the one before is in force".to_owned());
        }
        (reasons, notes)
    }
}

/// Answers until it is dropped.
pub async fn serve(listener: TcpListener, state: Arc<State>) {
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(state);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "nothing is answered any more at admin.bind");
    }
}

async fn ready(Shared(state): Shared<Arc<State>>) -> impl IntoResponse {
    let (reasons, notes) = state.reasons();
    let status = if reasons.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let lines = reasons.iter().map(|reason| format!("not ready: {reason}\n"));
    let lines = lines.chain(notes.iter().map(|note| format!("note: {note}\n")));
    let text: String = lines.collect();
    (status, if text.is_empty() { "ok\n".to_owned() } else { text })
}

async fn metrics(Shared(state): Shared<Arc<State>>) -> impl IntoResponse {
    let text = state.measures.render();
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
}
