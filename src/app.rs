//! The composition root of `serve`: the only reader of the configuration, the only place that spawns and wires.

use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::http::{AppState, router, serve};
use crate::service::Service;

/// Longest time for learning what is queued and writing the last state, once calls have ended.
const SHUTDOWN_MAX: Duration = Duration::from_secs(10);

/// Runs until SIGTERM or ctrl-c, then stops in order: stop accepting, let calls end, learn what was accepted, write
/// the last snapshot and samples.
///
/// # Errors
/// What prevented the start, in words for people.
pub fn run(config: Config) -> anyhow::Result<()> {
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.threads)
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    runtime.block_on(serve_until_told(config))
}

async fn serve_until_told(config: Config) -> anyhow::Result<()> {
    config.warnings.iter().for_each(|line| tracing::warn!("{line}"));
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for ctrl-c")?;
    let listeners = bind(&config.listen).await?;
    let role = config.service.role;
    let state_dir = config.service.state_dir.clone();
    let (service, handle) = Service::start(config.service)?;
    let generation = service.snapshot().version.generation.0;
    for listener in &listeners {
        let address = listener.local_addr().context("cannot tell the bound address")?;
        tracing::info!("listening on http://{address}");
    }
    let place = state_dir.map_or("memory only".to_string(), |dir| dir.display().to_string());
    tracing::info!(role = role.name(), generation, state_dir = place, "foretoken {} serves", env!("CARGO_PKG_VERSION"));
    let cancel = CancellationToken::new();
    let state = AppState { stopping: cancel.clone(), ..AppState::new(service, config.http.clone()) };
    let serving = tokio::spawn({
        let cancel = cancel.clone();
        let params = config.http;
        async move { serve(listeners, router(state), &params, cancel).await }
    });
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping in order"),
        _ = interrupt.recv() => tracing::info!("ctrl-c: stopping in order; once more stops at once"),
    }
    cancel.cancel();
    let orderly = async {
        if serving.await.is_err() {
            tracing::error!("the accept loop panicked");
        }
        if let Err(error) = handle.shutdown(SHUTDOWN_MAX).await {
            tracing::error!("not all was put away: {error}");
        }
    };
    tokio::select! {
        () = orderly => {
            tracing::info!("stopped");
            Ok(())
        }
        _ = interrupt.recv() => Err(anyhow!("stopped at once by a second ctrl-c; samples of the last moments may be lost")),
    }
}

async fn bind(addresses: &[String]) -> anyhow::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("cannot listen on {address}; if another process has it, stop that or give --listen another port")
        })?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// A thousand descriptors, the usual soft limit, are fewer connections than a router may open.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::debug!("cannot raise the descriptor limit: {error}");
    }
}
