//! Corrections as they are published: the pool's offset, each endpoint's scale and offset, the quantile table, and how
//! fresh all this is.

use super::shape::QuantileShape;
use crate::types::{EndpointName, Role, Target, UnixMs};

/// Endpoints with corrections of their own; beyond it the one heard of least recently is forgotten.
pub const ENDPOINTS_MAX: usize = 1024;

/// Window of staleness, ms.
pub const STALE_AFTER_MS: i64 = 600_000;

/// Widening of the log spread per window of staleness, and its limit.
const WIDENING_STEP: f64 = 0.05;
const WIDENING_MAX: f64 = 0.5;

/// Corrections of one endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointCorrection {
    /// Which.
    pub endpoint: EndpointName,
    /// Fitted log scale against the pool's median endpoint, added to both anchors.
    pub log_scale: f64,
    /// Online offset, added to `ln Q50` and `ln Q90`; `None` while the endpoint has too few observations, so that the
    /// pool's holds.
    pub offsets: Option<[f64; 2]>,
    /// Whether what it runs changed so lately that it has too few samples of its own.
    pub warming: bool,
}

/// What corrects one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Correction {
    /// The endpoint's log scale.
    pub log_scale: f64,
    /// Online offset of each anchor.
    pub offsets: [f64; 2],
    /// Whether the offset is the endpoint's own.
    pub offsets_own: bool,
    /// Whether what it runs changed lately.
    pub warming: bool,
}

/// One target's corrections as published.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnlineTarget {
    /// For requests without a known endpoint: added to `ln Q50` and `ln Q90`.
    pub pool: [f64; 2],
    /// Whether the one unnamed endpoint changed lately.
    pub pool_warming: bool,
    /// Ascending by name.
    pub endpoints: Vec<EndpointCorrection>,
    /// From the anchors to other quantiles.
    pub shape: QuantileShape,
    /// When the tenth-latest sample was received; `None` while there are fewer than ten.
    pub tenth_latest_at: Option<UnixMs>,
}

impl OnlineTarget {
    /// What corrects a request to an endpoint, or to one that is not known.
    #[inline]
    pub fn correction(&self, endpoint: Option<&str>) -> Correction {
        let own = endpoint.filter(|_| !self.endpoints.is_empty()).and_then(|name| {
            let index = self.endpoints.binary_search_by(|entry| entry.endpoint.as_str().cmp(name)).ok()?;
            self.endpoints.get(index)
        });
        match own {
            None => Correction {
                log_scale: 0.0,
                offsets: self.pool,
                offsets_own: false,
                warming: self.pool_warming && endpoint.is_none(),
            },
            Some(entry) => Correction {
                log_scale: entry.log_scale,
                offsets: entry.offsets.unwrap_or(self.pool),
                offsets_own: entry.offsets.is_some(),
                warming: entry.warming,
            },
        }
    }

    /// What to add to the log spread at `now` because samples are old; 0 while they are fresh. `None`: not stale.
    pub fn widening(&self, now: UnixMs) -> Option<f64> {
        let age = now.since(self.tenth_latest_at?);
        (age > STALE_AFTER_MS).then(|| ((age / STALE_AFTER_MS) as f64 * WIDENING_STEP).min(WIDENING_MAX))
    }
}

/// All corrections as published, by role and target; replaced as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Online(pub [[OnlineTarget; 2]; 3]);

impl Online {
    /// Those of one role and target.
    pub fn of(&self, role: Role, target: Target) -> &OnlineTarget {
        &self.0[role.index()][target.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_endpoint_has_its_own_and_a_stranger_the_pools() {
        let slow = EndpointCorrection {
            endpoint: EndpointName::try_new("slow").unwrap(),
            log_scale: 0.7,
            offsets: None,
            warming: true,
        };
        let online = OnlineTarget { pool: [0.1, 0.2], endpoints: vec![slow], ..OnlineTarget::default() };
        let own = online.correction(Some("slow"));
        assert_eq!((own.log_scale, own.offsets, own.offsets_own, own.warming), (0.7, [0.1, 0.2], false, true));
        let stranger = online.correction(Some("stranger"));
        assert_eq!((stranger.log_scale, stranger.offsets, stranger.warming), (0.0, [0.1, 0.2], false));
        assert_eq!(stranger, online.correction(None));
    }

    #[test]
    fn staleness_widens_in_steps_up_to_its_limit() {
        let online = OnlineTarget { tenth_latest_at: Some(UnixMs(0)), ..OnlineTarget::default() };
        assert_eq!(online.widening(UnixMs(STALE_AFTER_MS)), None);
        assert_eq!(online.widening(UnixMs(STALE_AFTER_MS + 1)), Some(WIDENING_STEP));
        assert_eq!(online.widening(UnixMs(STALE_AFTER_MS * 1000)), Some(WIDENING_MAX));
    }
}
