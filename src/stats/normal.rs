//! The standard normal distribution.

/// Standard normal quantile (inverse cumulative distribution) for `p` in (0, 1), by the rational approximation of
/// P. J. Acklam (relative error below 1.2e-9). Outside (0, 1) it answers minus or plus infinity.
pub fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.38357751867269e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const B: [f64; 5] =
        [-5.447609879822406e1, 1.615858368580409e2, -1.556989798598866e2, 6.680131188771972e1, -1.328068155288572e1];
    const C: [f64; 6] = [
        -7.784894002430293e-3,
        -3.223964580411365e-1,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const D: [f64; 4] = [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416];
    const TAIL: f64 = 0.02425;
    let horner = |coefficients: &[f64], x: f64| coefficients.iter().fold(0.0, |sum, c| sum * x + c);
    if p <= 0.0 {
        f64::NEG_INFINITY
    } else if p >= 1.0 {
        f64::INFINITY
    } else if p < TAIL {
        let q = (-2.0 * p.ln()).sqrt();
        horner(&C, q) / (horner(&D, q) * q + 1.0)
    } else if p > 1.0 - TAIL {
        let q = (-2.0 * (1.0 - p).ln()).sqrt();
        -horner(&C, q) / (horner(&D, q) * q + 1.0)
    } else {
        let q = p - 0.5;
        let r = q * q;
        horner(&A, r) * q / (horner(&B, r) * r + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::normal_quantile;

    #[test]
    fn known_points_and_symmetry() {
        for (p, z) in [(0.5, 0.0), (0.9, 1.2815515655446), (0.975, 1.9599639845401), (0.001, -3.0902323061678)] {
            assert!((normal_quantile(p) - z).abs() < 1e-7, "p = {p}");
            assert!((normal_quantile(p) + normal_quantile(1.0 - p)).abs() < 1e-7, "p = {p}");
        }
        assert_eq!(normal_quantile(0.0), f64::NEG_INFINITY);
        assert_eq!(normal_quantile(1.0), f64::INFINITY);
    }
}
