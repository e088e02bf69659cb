//! The core's costs: one prediction through a snapshot, and one fit of 1,000, 5,000 and 20,000 samples.
//!
//! Both print a ratio to something in the same run: a prediction to the prior's bare physics, a fit (base, trees, cross-validation) to a plain
//! least-squares solve of the same columns by linfa.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use foretoken::features;
use foretoken::model::{FitSettings, Prior, TREES_MAX, TargetModel, TrainingRow};
use foretoken::snapshot::{Conditions, Snapshot};
use foretoken::training::{Learner, LearnerParams};
use foretoken::types::{Ask, Features, Lineage, Manner, Observation, Promised, Quantile, Role, Sample, Target, UnixMs};
use linfa::prelude::*;
use ndarray::{Array1, Array2};

/// A spread of realistic rows without a generator: each field walks its range with a stride of its own.
fn features_at(i: u32) -> Features {
    Features {
        kv_cache_usage: f64::from(i * 37 % 100) / 100.0,
        input_tokens: 50 + i * 7919 % 16_000,
        requests_waiting: (i * 31 % 12).saturating_sub(8),
        requests_running: i * 13 % 60,
        prefix_cache_score: f64::from(i * 17 % 10) / 10.0,
        prefill_tokens_in_flight: i * 4409 % 30_000,
        decode_tokens_in_flight: i * 97 % 9_000,
        encoder_matched_size: 0,
        encoder_input_size: 0,
        role: Role::Both,
    }
}

fn actual_ms(target: Target, i: u32) -> f64 {
    let features = features_at(i);
    let theta = Prior::default().theta(target);
    let base: f64 = features::columns(target, &features).iter().zip(theta).map(|(a, b)| a * b).sum();
    // Steps that no linear base can follow, so that there is something for the trees.
    let busy = if features.kv_cache_usage > 0.6 && features.requests_running > 25 { 1.6 } else { 1.0 };
    let long = if features.input_tokens > 9_000 && features.prefix_cache_score < 0.4 { 0.7 } else { 1.0 };
    base * busy * long * (1.0 + f64::from(i * 29 % 40) / 50.0)
}

fn training_rows(target: Target, count: u32) -> Vec<TrainingRow> {
    (0..count).map(|i| TrainingRow { features: features_at(i), actual_ms: actual_ms(target, i), endpoint: 0 }).collect()
}

fn fitted_snapshot() -> Snapshot {
    let mut learner = Learner::new(LearnerParams::default(), Snapshot::prior(&Prior::default(), Lineage(1), UnixMs(0)));
    for i in 0..5_000u32 {
        let now = UnixMs(i64::from(i) * 100);
        let sample = Sample::try_new(Sample {
            features: features_at(i),
            observation: Observation {
                ttft_ms: Some(actual_ms(Target::Ttft, i)),
                tpot_ms: Some(actual_ms(Target::Tpot, i)),
                output_tokens: 100,
            },
            endpoint: None,
            observed_at: now,
            dispatched_at: None,
            promised: Promised::default(),
            manner: Manner::default(),
            fingerprint: None,
        });
        if let Ok(sample) = sample {
            learner.observe(&sample, now);
            learner.step(now);
        }
    }
    learner.snapshot(UnixMs(500_000))
}

/// The most trees a snapshot can hold: those that were grown, over and over.
fn with_all_trees(mut snapshot: Snapshot) -> Snapshot {
    let mut models = (*snapshot.models).clone();
    for forest in models.0.iter_mut().flatten().flat_map(|model| &mut model.residuals) {
        let grown = forest.trees.clone();
        forest.trees = grown.iter().cycle().take(TREES_MAX).cloned().collect();
    }
    snapshot.models = Arc::new(models);
    snapshot
}

fn predict(criterion: &mut Criterion) {
    let fitted = fitted_snapshot();
    let full = with_all_trees(fitted.clone());
    for target in Target::ALL {
        let trees = full.models.common(target).residuals.each_ref().map(|forest| forest.trees.len());
        println!("{} trees in the full snapshot: {trees:?}", target.name());
    }
    println!("full snapshot: {} bytes", foretoken::snapshot::encode(&full).len());
    let prior = Snapshot::prior(&Prior::default(), Lineage(1), UnixMs(0));
    let rows: Vec<Features> = (0..1_000).map(features_at).collect();
    let mut group = criterion.benchmark_group("predict_1000_rows");
    group.throughput(Throughput::Elements(rows.len() as u64));
    for (name, snapshot) in [("prior", &prior), ("fitted", &fitted), ("120_trees", &full)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let reader = snapshot.read(Conditions::new(Ask::Quantile(Quantile::P90), UnixMs(500_000)));
                rows.iter().map(|row| reader.predict(black_box(row), None).ttft.value_ms).sum::<f64>()
            });
        });
    }
    group.finish();
}

fn fit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fit");
    group.sample_size(10);
    for count in [1_000u32, 5_000, 20_000] {
        group.throughput(Throughput::Elements(u64::from(count)));
        for target in Target::ALL {
            let rows = training_rows(target, count);
            group.bench_with_input(BenchmarkId::new(target.name(), count), &rows, |bencher, rows| {
                bencher.iter(|| TargetModel::fit(target, black_box(rows), &[], &FitSettings::default()));
            });
        }
        let rows = training_rows(Target::Ttft, count);
        let design =
            Array2::from_shape_fn((rows.len(), 10), |(i, j)| features::columns(Target::Ttft, &rows[i].features)[j]);
        let outcome = Array1::from_iter(rows.iter().map(|row| row.actual_ms));
        group.bench_with_input(
            BenchmarkId::new("linfa_ols", count),
            &(design, outcome),
            |bencher, (design, outcome)| {
                bencher.iter_batched(
                    || linfa::Dataset::new(design.clone(), outcome.clone()),
                    |dataset| linfa_linear::LinearRegression::new().with_intercept(false).fit(&dataset).is_ok(),
                    BatchSize::LargeInput,
                );
            },
        );
    }
    group.finish();
}

criterion_group!(benches, predict, fit);
criterion_main!(benches);
