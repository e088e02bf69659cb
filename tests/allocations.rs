//! I7: reading a snapshot and predicting through it allocates nothing, whatever the number of rows.

use std::sync::Arc;

use foretoken::calibration::{EndpointCorrection, Online, OnlineTarget};
use foretoken::model::{Forest, Prior, TREES_MAX, Tree};
use foretoken::snapshot::{Conditions, Models, Snapshot};
use foretoken::types::{Ask, EndpointName, Features, Lineage, Quantile, Role, Target, UnixMs};

fn snapshot_with_endpoints() -> Snapshot {
    let mut snapshot = Snapshot::prior(&Prior::default(), Lineage(1), UnixMs(0));
    let endpoints = (0..100)
        .filter_map(|i| EndpointName::try_new(&format!("endpoint-{i:03}")))
        .map(|endpoint| EndpointCorrection { endpoint, log_scale: 0.3, offsets: Some([0.1, 0.2]), warming: false })
        .collect();
    let online = OnlineTarget { endpoints, ..OnlineTarget::default() };
    let mut models = Models::prior(&Prior::default());
    for model in models.0.iter_mut().flatten() {
        let mut tree = Tree::constant(0.01);
        tree.thresholds[0] = 5.0;
        let forest = Forest { trees: vec![tree; TREES_MAX], ..Forest::default() };
        model.residuals = [forest.clone(), forest];
    }
    snapshot.models = Arc::new(models);
    snapshot.online = Arc::new(Online(std::array::from_fn(|_| [online.clone(), online.clone()])));
    snapshot
}

#[test]
fn i7_predicting_does_not_allocate() {
    let snapshot = snapshot_with_endpoints();
    let p95 = Quantile::try_new(0.95).expect("a quantile");
    let mut total = 0.0;
    let allocations = allocation_counter::measure(|| {
        for ask in [Ask::Quantile(Quantile::P90), Ask::Mean] {
            let reader = snapshot.read(Conditions::new(ask, UnixMs(5)));
            for i in 0..1_000u32 {
                let features = Features {
                    kv_cache_usage: 0.5,
                    input_tokens: i * 10,
                    requests_waiting: i % 5,
                    requests_running: i % 50,
                    prefix_cache_score: 0.25,
                    prefill_tokens_in_flight: i * 7,
                    decode_tokens_in_flight: i * 3,
                    encoder_matched_size: 0,
                    encoder_input_size: 0,
                    role: Role::Both,
                };
                let endpoint = if i % 2 == 0 { Some("endpoint-042") } else { None };
                let estimate = reader.predict(&features, endpoint);
                total += estimate.ttft.value_ms + reader.quantile_ms(Role::Both, Target::Tpot, &estimate.tpot, p95);
            }
        }
    });
    assert!(total.is_finite() && total > 0.0);
    assert_eq!(allocations.count_total, 0);
}
