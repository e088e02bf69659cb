//! The accept loop: HTTP/1.1 connections on several listeners, kept while idle, bounded in number, drained at the end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::patience::Patience;
use super::state::HttpParams;

/// Pause after a failed accept (descriptors used up, for one): long enough not to spin, short enough not to be noticed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `router` on every listener until `cancel`, then lets calls in progress end for at most
/// `params.drain_timeout`.
pub async fn serve(listeners: Vec<TcpListener>, router: Router, params: &HttpParams, cancel: CancellationToken) {
    let connections = TaskTracker::new();
    let room = Arc::new(Semaphore::new(params.connections_max));
    let mut builder = http1::Builder::new();
    // hyper runs this clock from the end of one call to the next one's head, so it bounds idle connections and clients
    // that trickle a head alike.
    builder.timer(TokioTimer::new()).header_read_timeout(params.idle_timeout).keep_alive(true).pipeline_flush(true);
    let patience = params.call_timeout;
    let mut loops = tokio::task::JoinSet::new();
    for listener in listeners {
        let (builder, router, room) = (builder.clone(), router.clone(), Arc::clone(&room));
        let (connections, cancel) = (connections.clone(), cancel.clone());
        loops.spawn(async move {
            loop {
                let permit = tokio::select! {
                    () = cancel.cancelled() => return,
                    permit = Arc::clone(&room).acquire_owned() => permit,
                };
                let Ok(permit) = permit else { return };
                let accepted = tokio::select! {
                    () = cancel.cancelled() => return,
                    accepted = listener.accept() => accepted,
                };
                match accepted {
                    Ok((stream, _)) => {
                        if let Err(error) = stream.set_nodelay(true) {
                            tracing::debug!("cannot set TCP_NODELAY: {error}");
                        }
                        let (builder, router, cancel) = (builder.clone(), router.clone(), cancel.clone());
                        connections.spawn(async move {
                            let _permit = permit;
                            connection(Patience::new(stream, patience), &builder, router, cancel).await;
                        });
                    }
                    Err(error) => {
                        tracing::warn!("cannot accept a connection: {error}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
    }
    while loops.join_next().await.is_some() {}
    connections.close();
    if tokio::time::timeout(params.drain_timeout, connections.wait()).await.is_err() {
        tracing::warn!("{} connections did not end within the drain time", connections.len());
    }
}

async fn connection(stream: Patience<TcpStream>, builder: &http1::Builder, router: Router, cancel: CancellationToken) {
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = cancel.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        // Clients that vanish, time out or speak something else are their own business, and many.
        tracing::debug!("connection ended: {error}");
    }
}
