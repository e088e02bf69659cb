//! The persister.
use crate::types::Sample;
use std::sync::Arc;

#[derive(Clone)]
pub(super) enum Disk {}

impl Disk {
    pub(super) fn log(&self, _batch: &Arc<Vec<Sample>>) {
        match *self {}
    }
    pub(super) fn forget_samples(&self) {
        match *self {}
    }
    pub(super) fn keep_snapshot(&self) {
        match *self {}
    }
}
