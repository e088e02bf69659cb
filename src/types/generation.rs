//! Which model answered.

/// Number of a serving model. 0 is the prior; each accepted fit adds one, and so does each change of regime that the
/// model is shifted by (I1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u64);

impl Generation {
    /// The next one.
    pub fn next(self) -> Self {
        Generation(self.0 + 1)
    }
}

/// Identity of one history of generations: drawn once when a state directory begins. Generations of different
/// lineages are not comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lineage(pub u64);

/// Everything that tells two published snapshots apart. `revision` counts the corrections published between two
/// fits: the model is the same, its online offsets are newer. Within a lineage (generation, revision) only rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Version {
    /// History this snapshot belongs to.
    pub lineage: Lineage,
    /// The fit.
    pub generation: Generation,
    /// Corrections since the fit.
    pub revision: u64,
}

impl Version {
    /// Whether `self` is newer than `other` in the same lineage.
    pub fn is_after(&self, other: &Version) -> bool {
        self.lineage == other.lineage && (self.generation, self.revision) > (other.generation, other.revision)
    }
}
