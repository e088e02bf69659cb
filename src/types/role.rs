//! What part of a request an endpoint serves.

/// Role of an endpoint in a disaggregated pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Prefill and decode on one engine; also every role we do not know.
    #[default]
    Both,
    /// Prefill only.
    Prefill,
    /// Decode only.
    Decode,
}

impl Role {
    /// All roles; [`Role::Both`] first.
    pub const ALL: [Role; 3] = [Role::Both, Role::Prefill, Role::Decode];

    /// Position in [`Role::ALL`].
    pub fn index(self) -> usize {
        match self {
            Role::Both => 0,
            Role::Prefill => 1,
            Role::Decode => 2,
        }
    }

    /// Lower-case name as it stands in metrics labels and tables.
    pub fn name(self) -> &'static str {
        match self {
            Role::Both => "both",
            Role::Prefill => "prefill",
            Role::Decode => "decode",
        }
    }

    /// Reads the wire's `pod_type`. Unknown words mean [`Role::Both`], with `false` so that the caller can count it.
    pub fn from_wire(word: &str) -> (Self, bool) {
        match word {
            "" | "both" => (Role::Both, true),
            "prefill" => (Role::Prefill, true),
            "decode" => (Role::Decode, true),
            _ => (Role::Both, false),
        }
    }

    /// The wire's word; empty for [`Role::Both`].
    pub fn as_wire(self) -> &'static str {
        match self {
            Role::Both => "",
            Role::Prefill => "prefill",
            Role::Decode => "decode",
        }
    }
}
