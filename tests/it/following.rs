//! One trainer and its followers over real sockets: new generations arrive, a lost trainer is said, a copy is kept.

use std::path::Path;
use std::time::Duration;

use foretoken::service::{Flush, FollowParams, Service, ServiceHandle, ServiceParams, ServiceRole, Unavailable, now};
use foretoken::types::{Ask, State};

use crate::shell::{DEADLINE, Served, median_ttft_ms, poll, samples};

fn trainer(dir: Option<&Path>) -> (Service, ServiceHandle) {
    let state_dir = dir.map(Path::to_path_buf);
    let params = ServiceParams { role: ServiceRole::Train, state_dir, ..ServiceParams::default() };
    Service::start(params).expect("a trainer")
}

fn follower(url: &str, dir: Option<&Path>) -> (Service, ServiceHandle) {
    let follow =
        FollowParams { retry_max: Duration::from_millis(100), stale_after: Duration::ZERO, ..FollowParams::new(url) };
    let params = ServiceParams {
        role: ServiceRole::Predict,
        state_dir: dir.map(Path::to_path_buf),
        follow: Some(follow),
        ..ServiceParams::default()
    };
    Service::start(params).expect("a follower")
}

async fn teach(trainer: &Service, range: std::ops::Range<u32>) {
    let before = trainer.snapshot().version.generation;
    trainer.offer(samples(range)).expect("a trainer takes samples");
    poll("the trainer has a new generation", || trainer.snapshot().version.generation > before).await;
}

async fn in_step(follower: &Service, trainer: &Service) {
    poll("the follower has the trainer's snapshot", || follower.snapshot().version == trainer.snapshot().version).await;
}

fn floor(service: &Service) -> State {
    service.conditions(Ask::Mean, now()).at_least
}

#[tokio::test]
async fn a_new_generation_and_every_correction_reach_all_followers() {
    let (trainer, trainer_handle) = trainer(None);
    let served = Served::start(trainer.clone(), 0).await;
    let (first, first_handle) = follower(&served.url, None);
    let (second, second_handle) = follower(&served.url, None);
    for round in 0..3 {
        teach(&trainer, round * 300..(round + 1) * 300).await;
        for follower in [&first, &second] {
            in_step(follower, &trainer).await;
            assert_eq!(*follower.snapshot(), *trainer.snapshot());
            assert_eq!(median_ttft_ms(follower), median_ttft_ms(&trainer));
            assert!(follower.status().ready);
        }
    }
    // Not enough for a fit: a correction alone.
    let generation = trainer.snapshot().version.generation;
    trainer.offer(samples(900..905)).unwrap();
    poll("a correction", || trainer.snapshot().provenance.samples_accepted == 905).await;
    in_step(&first, &trainer).await;
    assert_eq!(first.snapshot().version.generation, generation);
    let sync = first.status().sync.unwrap();
    assert_eq!((sync.connected, sync.error, sync.failures), (true, None, 0));
    assert_eq!(first.status().not_learning_because, None);
    for handle in [first_handle, second_handle, trainer_handle] {
        handle.shutdown(DEADLINE).await.unwrap();
    }
    served.stop().await;
}

#[tokio::test]
async fn a_lost_trainer_is_said_with_age_and_cause_and_the_link_heals_by_itself() {
    let temp = tempfile::tempdir().unwrap();
    let (first_life, handle) = trainer(Some(temp.path()));
    let served = Served::start(first_life.clone(), 0).await;
    let url = served.url.clone();
    let port = url.rsplit(':').next().unwrap().parse().unwrap();
    let (follower, follower_handle) = follower(&url, None);
    teach(&first_life, 0..300).await;
    in_step(&follower, &first_life).await;
    poll("in step", || floor(&follower) == State::Ready).await;
    let answer = median_ttft_ms(&follower);

    served.stop().await;
    handle.shutdown(DEADLINE).await.unwrap();
    poll("it is said", || floor(&follower) == State::Stale).await;
    poll("with its cause", || follower.status().reason.contains("connection refused")).await;
    let status = follower.status();
    assert_eq!(status.state, State::Stale);
    assert!(status.reason.starts_with("last snapshot is "), "{}", status.reason);
    assert!(status.reason.contains(&format!("old; trainer at {url} does not answer: ")), "{}", status.reason);
    assert!(status.not_learning_because.unwrap().contains("out of reach"));
    assert!(status.ready, "the last snapshot goes on answering");
    assert_eq!(median_ttft_ms(&follower), answer);
    assert!(!follower.sync_now().await);

    // The trainer comes back, restarted from its directory: same history, higher numbers.
    let (second_life, handle) = trainer(Some(temp.path()));
    let served = Served::start(second_life.clone(), port).await;
    in_step(&follower, &second_life).await;
    poll("in step again", || floor(&follower) == State::Ready).await;
    teach(&second_life, 300..700).await;
    in_step(&follower, &second_life).await;
    follower_handle.shutdown(DEADLINE).await.unwrap();
    handle.shutdown(DEADLINE).await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn a_follower_starts_from_its_copy_while_the_trainer_is_gone() {
    let temp = tempfile::tempdir().unwrap();
    let (trainer, trainer_handle) = trainer(None);
    let served = Served::start(trainer.clone(), 0).await;
    let url = served.url.clone();
    let (first_life, handle) = follower(&url, Some(temp.path()));
    teach(&trainer, 0..300).await;
    in_step(&first_life, &trainer).await;
    handle.shutdown(DEADLINE).await.unwrap();
    let last = first_life.snapshot();
    served.stop().await;

    let (second_life, handle) = follower(&url, Some(temp.path()));
    assert_eq!(*second_life.snapshot(), *last, "unchanged, number and all");
    let status = second_life.status();
    assert!(status.ready);
    assert_eq!(status.state, State::Stale, "{}", status.reason);
    handle.shutdown(DEADLINE).await.unwrap();
    trainer_handle.shutdown(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn a_trainer_that_begins_anew_takes_over_only_once_it_has_learnt() {
    let temp = tempfile::tempdir().unwrap();
    let (first, handle) = trainer(None);
    let served = Served::start(first.clone(), 0).await;
    let url = served.url.clone();
    let port = url.rsplit(':').next().unwrap().parse().unwrap();
    let (follower, follower_handle) = self::follower(&url, Some(temp.path()));
    teach(&first, 0..300).await;
    in_step(&follower, &first).await;
    let kept = follower.snapshot().version;
    served.stop().await;
    handle.shutdown(DEADLINE).await.unwrap();

    // Another history on the same address, which knows nothing yet.
    let (second, handle) = trainer(None);
    let served = Served::start(second.clone(), port).await;
    poll("it is reached and not taken", || {
        let status = follower.status();
        status.sync.is_some_and(|sync| sync.connected && sync.error.is_some()) && status.state == State::Stale
    })
    .await;
    let status = follower.status();
    assert_eq!(status.version, kept);
    assert_eq!(status.state, State::Stale);
    assert!(status.reason.contains("answers, but the trainer began a new history"), "{}", status.reason);
    teach(&second, 0..100).await;
    in_step(&follower, &second).await;
    poll("in step", || floor(&follower) == State::Ready).await;
    follower_handle.shutdown(DEADLINE).await.unwrap();
    let (again, follower_handle) = self::follower(&url, Some(temp.path()));
    assert_eq!(again.snapshot().version.lineage, second.snapshot().version.lineage);
    follower_handle.shutdown(DEADLINE).await.unwrap();
    handle.shutdown(DEADLINE).await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn a_follower_takes_no_samples_and_says_who_does() {
    let (follower, handle) = follower("http://127.0.0.1:9", None);
    let refused = Unavailable::PredictOnly { trainer_url: "http://127.0.0.1:9".to_string() };
    assert_eq!(follower.offer(samples(0..1)), Err(refused.clone()));
    assert_eq!(follower.survey().await, Err(refused.clone()));
    assert_eq!(follower.flush(Flush { samples: true, accuracy: true, models: true }).await, Err(refused));
    follower.refuse("no_outcome", 2);
    let status = follower.status();
    assert_eq!(status.ingest.refused["no_outcome"], 2);
    assert_eq!(status.state, State::Prior);
    assert!(
        status.reason.contains("; nothing fitted came from the trainer at http://127.0.0.1:9 so far"),
        "{}",
        status.reason
    );
    handle.shutdown(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_no_trainer_is_named_and_its_bytes_are_not_believed() {
    use axum::Router;
    use axum::routing::get;
    for (app, words) in [
        (Router::new(), "it answered 404 to GET /model/snapshot; is it a foretoken trainer?"),
        (Router::new().route("/model/snapshot", get(async || "<html>")), "not a foretoken snapshot"),
        (
            Router::new().route("/model/snapshot", get(async || vec![0u8; 5 << 20])),
            "the answer is longer than 4194304 bytes",
        ),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        let (follower, handle) = follower(&url, None);
        poll(words, || follower.status().sync.unwrap().error.is_some_and(|error| error.contains(words))).await;
        assert_eq!(follower.snapshot().version.generation.0, 0);
        handle.shutdown(DEADLINE).await.unwrap();
        server.abort();
    }
}
