//! The service as a whole, in memory: a sample goes in, a new model comes out, and nothing in between breaks it.

use std::time::Duration;

use super::testing::{poll, sample};
use super::*;
use crate::training::{FitJob, FitOutcome, FitResult};
use crate::types::{Quantile, State};

const DEADLINE: Duration = Duration::from_secs(60);

fn median(service: &Service) -> f64 {
    let features = sample(700).features;
    let now = now();
    let conditions = service.conditions(Ask::Quantile(Quantile::P50), now);
    service.snapshot().read(conditions).predict(&features, None).ttft.value_ms
}

fn offer(service: &Service, range: std::ops::Range<u32>) -> Offered {
    service.offer(range.map(sample).collect()).expect("a learner takes samples")
}

#[tokio::test]
async fn samples_become_a_serving_generation_and_the_books_balance() {
    let (service, handle) = Service::start(ServiceParams::default()).unwrap();
    let status = service.status();
    assert_eq!((status.state, status.ready), (State::Prior, false));
    assert_eq!(status.not_learning_because.as_deref(), Some("no samples were ever received"));

    let seen = service.snapshot().version;
    assert_eq!(offer(&service, 0..300), Offered { accepted: 300, dropped: 0 });
    assert!(service.changed(seen, DEADLINE).await);
    poll("all samples observed", || service.status().learner.unwrap().targets[0].observed == 300);
    poll("a fitted generation", || service.snapshot().version.generation.0 >= 1);
    let status = service.status();
    assert!(status.ready, "{}", status.ready_reason);
    assert_eq!(status.not_learning_because, None);
    assert_eq!((status.ingest.accepted, status.ingest.dropped, status.ingest.queued), (300, 0, 0));
    assert!(status.last_fit_duration_ms.is_some());
    let actual = sample(700).observation.ttft_ms.unwrap();
    assert!((median(&service) / actual).ln().abs() < 0.2, "{} {actual}", median(&service));
    let survey = service.survey().await.unwrap();
    assert_eq!(survey.targets[0].stored, 300);
    handle.shutdown(DEADLINE).await.unwrap();
    assert_eq!(offer(&service, 0..1), Offered { accepted: 0, dropped: 1 });
    assert_eq!(service.survey().await, Err(Unavailable::TrainerBusy(5_000)));
}

#[tokio::test]
async fn shutdown_learns_what_is_still_queued() {
    let (service, handle) = Service::start(ServiceParams::default()).unwrap();
    for i in 0..200 {
        offer(&service, i * 100..(i + 1) * 100);
    }
    handle.shutdown(DEADLINE).await.unwrap();
    let status = service.status();
    assert_eq!(status.ingest.accepted, 20_000);
    assert_eq!(status.learner.unwrap().targets[0].observed, 20_000);
    assert_eq!(service.snapshot().provenance.samples_accepted, 20_000);
}

#[tokio::test]
async fn forgetting_models_is_a_new_generation_of_the_prior() {
    let (service, handle) = Service::start(ServiceParams::default()).unwrap();
    let prior = median(&service);
    offer(&service, 0..300);
    poll("a fitted generation", || service.status().ready);
    let before = service.snapshot().version;
    let flushed = service.flush(Flush { samples: true, accuracy: true, models: true }).await.unwrap();
    assert_eq!(flushed.samples, [300, 300]);
    let after = service.snapshot();
    assert!(after.version.generation > before.generation);
    assert_eq!(median(&service), prior);
    let status = service.status();
    assert_eq!((status.state, status.ready), (State::Prior, false));
    assert_eq!(status.ingest.accepted, 300, "what was accepted stays counted");
    handle.shutdown(DEADLINE).await.unwrap();
}

fn panicking(_job: FitJob) -> FitResult {
    panic!("singular beyond repair")
}

#[tokio::test]
async fn i5_a_panicking_fit_leaves_the_serving_snapshot_is_counted_and_shows() {
    let (service, handle) = Service::start(ServiceParams { run_fit: panicking, ..ServiceParams::default() }).unwrap();
    let models = service.snapshot().models.clone();
    for round in 0..3 {
        offer(&service, round * 10..(round + 1) * 10);
        let panicked = || service.status().learner.unwrap().fits[4];
        poll("the panic is counted", || panicked() == u64::from(round + 1) * 2);
        let degraded = service.status().state == State::Degraded;
        assert_eq!(degraded, round == 2, "degraded from the third failure on");
    }
    assert_eq!(*service.snapshot().models, *models);
    let status = service.status();
    assert_eq!(status.learner.unwrap().last_fit.unwrap().outcome, [Some(FitOutcome::Panicked); 2]);
    let why = "the latest 3 TTFT fits panicked (singular beyond repair); \
               the latest 3 TPOT fits panicked (singular beyond repair)";
    assert_eq!(status.not_learning_because.as_deref(), Some(why));
    assert_eq!(status.reason, format!("{why}; the prior goes on answering"));
    let conditions = service.conditions(Ask::Mean, now());
    assert_eq!(conditions.at_least, State::Degraded);
    handle.shutdown(DEADLINE).await.unwrap();
}
