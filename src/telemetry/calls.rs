//! Counters of the HTTP edge.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// Classes of status, as label values.
const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "other"];

/// Name under which unknown paths are counted together.
const OTHER: &str = "other";

struct Route {
    name: &'static str,
    calls: [AtomicU64; CLASSES.len()],
    seconds: Option<Histogram>,
}

impl Route {
    fn total(&self) -> u64 {
        self.calls.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}

impl Route {
    fn new(name: &'static str, timed: bool) -> Self {
        // 50 us to 6.5 s.
        let seconds = timed.then(|| Histogram::new(exponential_buckets(0.000_05, 2.0, 18)));
        Route { name, calls: Default::default(), seconds }
    }
}

/// What the HTTP edge counts. The routes are given at the start, so that no caller can make a new series.
pub struct HttpMetrics {
    routes: Vec<Route>,
    other: Route,
    rows: AtomicU64,
    unknown_roles: AtomicU64,
}

impl HttpMetrics {
    /// Counters for these routes, each a path and its method; POST calls are timed.
    pub fn new(routes: &[(&'static str, &'static str)]) -> Self {
        HttpMetrics {
            routes: routes.iter().map(|(path, method)| Route::new(path, *method == "POST")).collect(),
            other: Route::new(OTHER, false),
            rows: AtomicU64::new(0),
            unknown_roles: AtomicU64::new(0),
        }
    }

    /// Counts one answered call, with its duration where that is of interest.
    pub fn call(&self, route: &str, status: u16, took: Option<Duration>) {
        let route = self.routes.iter().find(|known| known.name == route).unwrap_or(&self.other);
        let class = usize::from(status / 100).wrapping_sub(1).min(CLASSES.len() - 1);
        if let Some(counter) = route.calls.get(class) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if let (Some(seconds), Some(took)) = (&route.seconds, took) {
            seconds.observe(took.as_secs_f64());
        }
    }

    /// Counts predicted rows.
    pub fn predicted(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    /// Counts rows with an unknown role word.
    pub fn unknown_roles(&self, rows: u64) {
        self.unknown_roles.fetch_add(rows, Ordering::Relaxed);
    }

    /// Rows predicted so far.
    pub(super) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Rows with an unknown role word so far.
    pub(super) fn roles(&self) -> u64 {
        self.unknown_roles.load(Ordering::Relaxed)
    }

    /// Route, class of status and number, where there was any call.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        self.routes.iter().chain([&self.other]).flat_map(|route| {
            let counts = route.calls.iter().map(|counter| counter.load(Ordering::Relaxed));
            CLASSES.iter().zip(counts).filter(|(_, count)| *count > 0).map(|(class, count)| (route.name, *class, count))
        })
    }

    /// Durations by route, where there was any call.
    pub(super) fn durations(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        self.routes
            .iter()
            .filter(|route| route.total() > 0)
            .filter_map(|route| Some((route.name, route.seconds.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_or_status_makes_a_series_of_its_own() {
        let metrics = HttpMetrics::new(&[("/predict", "POST"), ("/status", "GET")]);
        metrics.call("/predict", 200, Some(Duration::from_millis(1)));
        for (route, status) in [("/made/up", 404), ("/status", 200), ("/status", 99), ("/status", 999)] {
            metrics.call(route, status, None);
        }
        let counts: Vec<_> = metrics.counts().collect();
        let expected = [("/predict", "2xx", 1), ("/status", "2xx", 1), ("/status", "other", 2), (OTHER, "4xx", 1)];
        assert_eq!(counts, expected);
        assert_eq!(metrics.durations().count(), 1);
    }
}
