//! A call with a list of rows, read in one pass. Each row is checked as soon as it is complete; good rows are kept, of the
//! bad ones only what an answer can say, so that a body full of bad rows costs no more memory than a good one.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::error::{ListWrong, Problem};
use super::json;
use super::lax::scalars;
use super::rows::{Fault, Quantiles, RawRow};
use crate::types::Quantile;

/// Bad rows that are shown in full on the lenient route; of the others only what is wrong is said.
const ROWS_ECHOED: usize = 20;

/// Rows allocated for at once, whatever the body's size promises.
const ROWS_RESERVED: usize = 16;

/// All faults of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct BadRow {
    /// Position in the call, from 0.
    pub index: usize,
    /// At least one.
    pub faults: Vec<Fault>,
    /// The row as it was understood, where the route shows it.
    pub row: Option<Value>,
}

/// What a list of rows came to.
#[derive(Debug)]
pub struct Rows<T> {
    /// Good rows with their positions, in order.
    pub good: Vec<(usize, T)>,
    /// Bad rows, at most [`Limits::told_max`] of them.
    pub bad: Vec<BadRow>,
    /// Bad rows, all.
    pub bad_total: usize,
    /// Rows refused, by reason (each bad row once, by its first fault).
    pub reasons: Vec<(&'static str, u64)>,
    /// Good rows with a role word we do not know; taken as serving both.
    pub unknown_roles: u64,
    /// Rows there were.
    pub total: usize,
}

/// How much of a list is kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Good rows beyond this position are counted only.
    pub rows_max: usize,
    /// Bad rows beyond this number are counted only.
    pub told_max: usize,
    /// Whether the first bad rows are kept as they were understood.
    pub echo: bool,
}

impl<T> Rows<T> {
    /// Whether every row is good.
    pub fn all_good(&self) -> bool {
        self.bad_total == 0
    }

    fn add(&mut self, raw: &RawRow<'_>, read: Result<T, Vec<Fault>>, limits: Limits) {
        let index = self.total;
        self.total += 1;
        match read {
            Ok(row) => {
                self.unknown_roles += u64::from(!raw.role_is_known());
                if index < limits.rows_max {
                    self.good.push((index, row));
                }
            }
            Err(faults) => {
                self.bad_total += 1;
                let reason = faults.first().map_or("wrong_type", |fault| fault.wrong.reason());
                match self.reasons.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, count)) => *count += 1,
                    None => self.reasons.push((reason, 1)),
                }
                if self.bad.len() < limits.told_max {
                    let row = (limits.echo && self.bad.len() < ROWS_ECHOED).then(|| raw.echo());
                    self.bad.push(BadRow { index, faults, row });
                }
            }
        }
    }
}

/// What stood under the list's name.
enum ListField<T> {
    Absent,
    NotAList,
    List(Rows<T>),
}

/// The further quantiles a call asks for, or what is wrong with them.
pub type Asked = Result<Vec<Quantile>, Fault>;

/// A whole body; `None` when it is JSON but no object.
type Call<T> = Option<(ListField<T>, Asked)>;

/// Reads a body whose rows stand under `list`, building each with `build`, and the further quantiles it asks for.
///
/// # Errors
/// When the body is not JSON (even after impossible numbers were marked), or its frame is not as it should be. Bad rows
/// are no error here.
pub fn read<T>(
    body: &str,
    list: &'static str,
    limits: Limits,
    build: impl Fn(&RawRow<'_>) -> Result<T, Vec<Fault>>,
) -> Result<(Rows<T>, Asked), Problem> {
    if body.is_empty() {
        return Err(Problem::NoBody);
    }
    let call: Call<T> = json::parse(body, || CallSeed { list, limits, build: &build })?;
    let (rows, quantiles) = call.ok_or(Problem::NotAnObject("the body should be an object with a list of rows"))?;
    match rows {
        ListField::Absent => Err(Problem::List { field: list, wrong: ListWrong::Missing }),
        ListField::NotAList => Err(Problem::List { field: list, wrong: ListWrong::NotAList }),
        ListField::List(rows) => Ok((rows, quantiles)),
    }
}

/// Reads a body that is one row.
///
/// # Errors
/// When there is none, or it is not JSON.
pub fn read_one<T>(body: &str, build: impl Fn(&RawRow<'_>) -> T) -> Result<T, Problem> {
    if body.is_empty() {
        return Err(Problem::NoBody);
    }
    Ok(json::parse(body, || RowSeed { build: &build })?)
}

struct RowSeed<'b, F> {
    build: &'b F,
}

impl<'de, T, F: Fn(&RawRow<'_>) -> T> DeserializeSeed<'de> for RowSeed<'_, F> {
    type Value = T;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        RawRow::deserialize(deserializer).map(|raw| (self.build)(&raw))
    }
}

struct CallSeed<'b, F> {
    list: &'static str,
    limits: Limits,
    build: &'b F,
}

impl<'de, T, F: Fn(&RawRow<'_>) -> Result<T, Vec<Fault>>> DeserializeSeed<'de> for CallSeed<'_, F> {
    type Value = Call<T>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Call<T>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T, F: Fn(&RawRow<'_>) -> Result<T, Vec<Fault>>> Visitor<'de> for CallSeed<'_, F> {
    type Value = Call<T>;
    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Call<T>, A::Error> {
        let mut rows = ListField::Absent;
        let mut quantiles = Ok(Vec::new());
        while let Some(key) = entries.next_key::<Cow<'de, str>>()? {
            if key == self.list {
                rows = entries.next_value_seed(ListSeed { limits: self.limits, build: self.build })?;
            } else if key == "quantiles" {
                quantiles = entries.next_value::<Quantiles<'de>>()?.read();
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Some((rows, quantiles)))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Call<T>, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }
    scalars!(Call<T>, None);
}

struct ListSeed<'b, F> {
    limits: Limits,
    build: &'b F,
}

impl<'de, T, F: Fn(&RawRow<'_>) -> Result<T, Vec<Fault>>> DeserializeSeed<'de> for ListSeed<'_, F> {
    type Value = ListField<T>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ListField<T>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T, F: Fn(&RawRow<'_>) -> Result<T, Vec<Fault>>> Visitor<'de> for ListSeed<'_, F> {
    type Value = ListField<T>;
    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of rows")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ListField<T>, A::Error> {
        let good = Vec::with_capacity(ROWS_RESERVED);
        let mut rows = Rows { good, bad: Vec::new(), bad_total: 0, reasons: Vec::new(), unknown_roles: 0, total: 0 };
        while let Some(raw) = items.next_element::<RawRow<'de>>()? {
            let read = (self.build)(&raw);
            rows.add(&raw, read, self.limits);
        }
        Ok(ListField::List(rows))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<ListField<T>, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(ListField::NotAList)
    }
    scalars!(ListField<T>, ListField::NotAList);
}
