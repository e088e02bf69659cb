//! The service in memory: a sample goes in, a new model comes out, and nothing in between breaks it.

use foretoken::service::{Flush, Offered, Service, ServiceParams, Unavailable, now};
use foretoken::training::FitOutcome;
use foretoken::types::{Ask, State};

use crate::shell::{DEADLINE, features, median_ttft_ms, poll, sample, samples};

fn offer(service: &Service, range: std::ops::Range<u32>) -> Offered {
    service.offer(samples(range)).expect("a learner takes samples")
}

#[tokio::test]
async fn i4_samples_become_a_serving_generation_and_the_books_balance() {
    let (service, handle) = Service::start(ServiceParams::default()).unwrap();
    let status = service.status();
    assert_eq!((status.state, status.ready), (State::Prior, false));
    assert_eq!(status.not_learning_because.as_deref(), Some("no sample was ever received"));

    let seen = service.snapshot().version;
    assert_eq!(offer(&service, 0..300), Offered { accepted: 300, dropped: 0 });
    assert!(service.changed(seen, DEADLINE).await);
    poll("all samples observed", || service.status().learner.unwrap().targets[0].observed == 300).await;
    poll("a fitted generation", || service.snapshot().version.generation.0 >= 1).await;
    let status = service.status();
    assert!(status.ready && service.is_ready(), "{}", status.ready_reason);
    assert_eq!(status.not_learning_because, None);
    assert_eq!((status.ingest.accepted, status.ingest.dropped, status.ingest.queued), (300, 0, 0));
    assert!(status.last_fit_duration_ms.is_some());
    let actual = sample(700).observation.ttft_ms.unwrap();
    assert!((median_ttft_ms(&service) / actual).ln().abs() < 0.2, "{} {actual}", median_ttft_ms(&service));
    assert_eq!(service.survey().await.unwrap().targets[0].stored, 300);
    handle.shutdown(DEADLINE).await.unwrap();
    assert_eq!(offer(&service, 0..1), Offered { accepted: 0, dropped: 1 });
    assert_eq!(service.survey().await, Err(Unavailable::TrainerBusy(5_000)));
}

#[tokio::test]
async fn i4_shutdown_learns_what_is_still_queued() {
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
async fn i1_forgetting_models_is_a_new_generation_of_the_prior() {
    let (service, handle) = Service::start(ServiceParams::default()).unwrap();
    let prior = median_ttft_ms(&service);
    offer(&service, 0..300);
    poll("a fitted generation", || service.status().ready).await;
    let before = service.snapshot().version;
    let flushed = service.flush(Flush { samples: true, accuracy: true, models: true }).await.unwrap();
    assert_eq!(flushed.samples, [300, 300]);
    assert!(service.snapshot().version.generation > before.generation);
    assert_eq!(median_ttft_ms(&service), prior);
    let status = service.status();
    assert_eq!((status.state, status.ready), (State::Prior, false));
    assert_eq!(status.ingest.accepted, 300, "what was accepted stays counted");
    handle.shutdown(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn i5_a_panicking_fit_leaves_the_serving_snapshot_is_counted_and_shows() {
    let params = ServiceParams { run_fit: |_| panic!("singular beyond repair"), ..ServiceParams::default() };
    let (service, handle) = Service::start(params).unwrap();
    let models = service.snapshot().models.clone();
    for round in 0..3 {
        offer(&service, round * 10..(round + 1) * 10);
        let panicked = || service.status().learner.unwrap().fits[4];
        poll("the panic is counted", || panicked() == u64::from(round + 1) * 2).await;
        let degraded = service.status().state == State::Degraded;
        assert_eq!(degraded, round == 2, "degraded from the third failure on");
    }
    assert_eq!(*service.snapshot().models, *models);
    let status = service.status();
    let parts = status.learner.unwrap().last_fit.unwrap().parts;
    assert!(parts.len() == 2 && parts.iter().all(|part| part.outcome == FitOutcome::Panicked));
    let why = "the latest 3 ttft fits panicked (singular beyond repair); \
               the latest 3 tpot fits panicked (singular beyond repair)";
    assert_eq!(status.not_learning_because.as_deref(), Some(why));
    let prior = "also prior: no fit yet: physics with shipped default constants";
    assert_eq!(status.reason, format!("{why}; the prior goes on answering; {prior}; {why}"));
    assert_eq!(service.conditions(Ask::Mean, now()).at_least, State::Degraded);
    handle.shutdown(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn a_target_without_outcomes_is_named_in_what_is_not_learnt() {
    let (service, handle) = Service::start(ServiceParams::default()).unwrap();
    service.refuse("no_outcome", 7);
    let none = "no sample was ever taken: 7 rows were refused (no_outcome 7)";
    assert_eq!(service.status().not_learning_because.as_deref(), Some(none));
    let mut only_ttft = samples(0..300);
    only_ttft.iter_mut().for_each(|sample| sample.observation.tpot_ms = None);
    service.offer(only_ttft).unwrap();
    poll("a fit of the one", || service.status().trained_rows[0] > 0).await;
    let status = service.status();
    assert_eq!(status.state, State::Prior);
    let why = "0 of 10 samples for the first tpot fit";
    assert_eq!(status.not_learning_because.as_deref(), Some(why));
    assert_eq!(status.reason, format!("no fit yet for tpot: physics with shipped default constants; {why}"));
    assert!(status.ready, "what it has is usable");
    handle.shutdown(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn i1_a_batch_has_one_generation_while_models_change() {
    let (service, handle) = Service::start(ServiceParams::default()).unwrap();
    let mut last = 0;
    for round in 0..20 {
        offer(&service, round * 50..(round + 1) * 50);
        let snapshot = service.snapshot();
        let reader = snapshot.read(service.conditions(Ask::Mean, now()));
        let generations: Vec<u64> = (0..100).map(|i| reader.predict(&features(i), None).generation.0).collect();
        assert!(generations.iter().all(|generation| *generation == generations[0]));
        assert!(generations[0] >= last, "generations only rise");
        last = generations[0];
        tokio::task::yield_now().await;
    }
    handle.shutdown(DEADLINE).await.unwrap();
}
