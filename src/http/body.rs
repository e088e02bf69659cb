//! A call's body: who may send it, its size, time and encoding, and the room it takes until it is answered.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::auth::{Access, authorize};
use super::error::Problem;
use super::state::AppState;

/// Bodies above which a call is computed off the async threads: some 1,000 rows, which would hold everything else up for
/// a millisecond or more.
const INLINE_BYTES_MAX: usize = 256 * 1024;

/// How much of a refused body is read and thrown away. Clients that send all before they listen then get the answer
/// instead of a broken connection.
const DISCARDED_BYTES_MAX: usize = 256 << 20;

/// How long throwing away may take.
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// Window of a zstd frame that is always taken, as its specification wants; a larger one needs a larger body limit.
const ZSTD_WINDOW_BYTES: usize = 8 << 20;

/// Longest text shown of a body that is not declared as JSON.
const SHOWN_CHARS_MAX: usize = 100;

/// Bytes of all bodies in memory at once, so that many large ones cannot take the host's memory.
#[derive(Debug)]
pub struct BodyBudget {
    free: AtomicUsize,
}

impl BodyBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> Self {
        BodyBudget { free: AtomicUsize::new(bytes) }
    }
}

/// A share of the budget, given back when dropped.
struct Held {
    budget: Arc<BodyBudget>,
    bytes: usize,
}

impl Held {
    fn grow(&mut self, bytes: usize) -> Result<(), Problem> {
        let take = |free: usize| free.checked_sub(bytes);
        self.budget.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).map_err(|_| Problem::Overloaded)?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.free.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// A call whose body has arrived. Room among the calls in progress is taken only now, so that clients who send slowly
/// take none of it.
pub struct Call<'a> {
    bytes: Bytes,
    deadline: Instant,
    state: &'a AppState,
    _room: OwnedSemaphorePermit,
    _held: Held,
}

impl<'a> Call<'a> {
    /// Reads the body of `request`: gzip, zstd or plain, declared as JSON or empty.
    ///
    /// # Errors
    /// Everything that is wrong before a byte is parsed.
    pub async fn read(state: &'a AppState, request: Request, access: Access) -> Result<Call<'a>, Problem> {
        let limit = state.params.body_bytes_max;
        let deadline = Instant::now() + state.params.call_timeout;
        let (head, mut body) = request.into_parts();
        let mut held = Held { budget: Arc::clone(&state.bodies), bytes: 0 };
        let read = async {
            authorize(&head.headers, access, &state.params)?;
            let encoding = Encoding::of(&head.headers)?;
            if declared_bytes(&head.headers).is_some_and(|bytes| bytes > limit as u64) {
                return Err(Problem::TooLarge { limit });
            }
            let late = |_| Problem::BodyTooSlow { limit_ms: state.params.call_timeout.as_millis() as u64 };
            let bytes = timeout_at(deadline, collect(&mut body, limit, &mut held)).await.map_err(late)??;
            Ok((bytes, encoding))
        };
        let (bytes, encoding) = match read.await {
            Ok(read) => read,
            Err(problem) => {
                if !matches!(problem, Problem::BodyTooSlow { .. }) {
                    discard(body, &head.headers).await;
                }
                return Err(problem);
            }
        };
        let room = Arc::clone(&state.room).try_acquire_owned().map_err(|_| Problem::Overloaded)?;
        let mut call = Call { bytes, deadline, state, _room: room, _held: held };
        if encoding != Encoding::Plain {
            let packed = call.bytes.clone();
            call.bytes = call.off_thread(move || encoding.unpack(&packed, limit)).await?;
            call._held.grow(call.bytes.len())?;
        }
        if !call.bytes.is_empty() && !is_json(&head.headers) {
            let text = String::from_utf8_lossy(&call.bytes).chars().take(SHOWN_CHARS_MAX).collect();
            return Err(Problem::NotDeclaredJson(text));
        }
        Ok(call)
    }

    /// Computes on the body where it hurts nobody: on a small one at once, on a large one on a thread for such work,
    /// of which there are few.
    ///
    /// # Errors
    /// What `work` says, or that its time was up.
    pub async fn compute<T: Send + 'static>(
        self,
        work: impl FnOnce(&str) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let bytes = self.bytes.clone();
        let work = move || work(text(&bytes)?);
        if self.bytes.len() <= INLINE_BYTES_MAX { work() } else { self.off_thread(work).await }
    }

    async fn off_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let threads = Arc::clone(&self.state.heavy);
        let run = async {
            let thread = threads.acquire_owned().await.map_err(|_| Problem::Overloaded)?;
            let job = move || {
                let _thread = thread;
                work()
            };
            tokio::task::spawn_blocking(job).await.unwrap_or(Err(Problem::Internal))
        };
        let limit_ms = self.state.params.call_timeout.as_millis() as u64;
        timeout_at(self.deadline, run).await.unwrap_or(Err(Problem::TimedOut { limit_ms }))
    }
}

fn text(bytes: &[u8]) -> Result<&str, Problem> {
    std::str::from_utf8(bytes).map_err(|_| {
        Problem::UnreadableBody("it is not UTF-8; name the content-encoding if it is compressed".to_string())
    })
}

fn declared_bytes(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The whole body. One that comes in one piece, as most do, is not copied.
async fn collect(body: &mut Body, limit: usize, held: &mut Held) -> Result<Bytes, Problem> {
    let mut first = Bytes::new();
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::UnreadableBody("it ended early".to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if held.bytes + data.len() > limit {
            return Err(Problem::TooLarge { limit });
        }
        held.grow(data.len())?;
        if first.is_empty() {
            first = data;
        } else {
            if all.is_empty() {
                all.extend_from_slice(&first);
            }
            all.extend_from_slice(&data);
        }
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

/// Reads on for a while without keeping anything, unless the client waits to be told to send.
async fn discard(mut body: Body, headers: &HeaderMap) {
    let waits = headers.contains_key(header::EXPECT);
    if waits || declared_bytes(headers).is_some_and(|bytes| bytes > DISCARDED_BYTES_MAX as u64) {
        return;
    }
    let rest = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, Bytes::len);
            if bytes > DISCARDED_BYTES_MAX {
                break;
            }
        }
    };
    // Not all thrown away in time: the connection ends with the answer.
    let _ = tokio::time::timeout(DISCARD_TIME, rest).await;
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// How a body is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Plain,
    Gzip,
    Zstd,
}

impl Encoding {
    fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let Some(value) = headers.get(header::CONTENT_ENCODING) else { return Ok(Encoding::Plain) };
        match value.to_str().unwrap_or("?").trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(Encoding::Plain),
            "gzip" | "x-gzip" => Ok(Encoding::Gzip),
            "zstd" => Ok(Encoding::Zstd),
            other => Err(Problem::UnsupportedEncoding(other.chars().take(40).collect())),
        }
    }

    fn unpack(self, packed: &[u8], limit: usize) -> Result<Bytes, Problem> {
        let mut out = Vec::new();
        match self {
            Encoding::Plain => out.extend_from_slice(packed),
            Encoding::Gzip => append(&mut out, flate2::read::MultiGzDecoder::new(packed), limit)?,
            Encoding::Zstd => unpack_zstd(&mut out, packed, limit)?,
        }
        Ok(out.into())
    }
}

fn cannot_unpack(error: &dyn std::fmt::Display) -> Problem {
    Problem::UnreadableBody(format!("cannot decompress it: {error}"))
}

/// Appends until `limit`: a small body can unpack to anything.
fn append(out: &mut Vec<u8>, reader: impl Read, limit: usize) -> Result<(), Problem> {
    let room = (limit - out.len()) as u64;
    reader.take(room + 1).read_to_end(out).map_err(|error| cannot_unpack(&error))?;
    if out.len() > limit { Err(Problem::TooLarge { limit }) } else { Ok(()) }
}

/// All frames one after another, their windows bounded too.
fn unpack_zstd(out: &mut Vec<u8>, mut packed: &[u8], limit: usize) -> Result<(), Problem> {
    while !packed.is_empty() {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(limit.max(ZSTD_WINDOW_BYTES) as u64);
        match StreamingDecoder::new_with_decoder(&mut packed, decoder) {
            Ok(mut frame) => {
                append(out, &mut frame, limit)?;
                let (said, counted) = (frame.decoder.get_checksum_from_data(), frame.decoder.get_calculated_checksum());
                if said.is_some() && said != counted {
                    return Err(cannot_unpack(&"the checksum does not match"));
                }
            }
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                packed = packed.get(length as usize..).unwrap_or_default();
            }
            Err(error) => return Err(cannot_unpack(&error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn several_members_or_frames_are_all_read() {
        let gz = [gzip(b"one,"), gzip(b"two")].concat();
        assert_eq!(&Encoding::Gzip.unpack(&gz, 100).unwrap()[..], b"one,two");
        let level = CompressionLevel::Fastest;
        let skippable = [0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9];
        let zst =
            [compress_to_vec(&b"one,"[..], level), skippable.to_vec(), compress_to_vec(&b"two"[..], level)].concat();
        assert_eq!(&Encoding::Zstd.unpack(&zst, 1 << 20).unwrap()[..], b"one,two");
    }

    #[test]
    fn a_small_body_that_unpacks_to_too_much_is_refused() {
        let bomb = gzip(&vec![b' '; 1 << 20]);
        assert!(bomb.len() < 5_000);
        assert!(matches!(Encoding::Gzip.unpack(&bomb, 1 << 19), Err(Problem::TooLarge { .. })));
        let bomb = compress_to_vec(&vec![b' '; 1 << 20][..], CompressionLevel::Fastest);
        assert!(matches!(
            Encoding::Zstd.unpack(&bomb, 1 << 18),
            Err(Problem::TooLarge { .. } | Problem::UnreadableBody(_))
        ));
    }

    #[test]
    fn bytes_that_are_not_packed_as_said_are_an_error() {
        for bytes in [&b"{}"[..], &[0x1f, 0x8b, 8], &[0x28, 0xb5, 0x2f, 0xfd, 0xff]] {
            assert!(matches!(Encoding::Gzip.unpack(bytes, 100), Err(Problem::UnreadableBody(_))), "{bytes:?}");
            assert!(matches!(Encoding::Zstd.unpack(bytes, 100), Err(Problem::UnreadableBody(_))), "{bytes:?}");
        }
    }

    #[test]
    fn the_budget_is_given_back() {
        let budget = Arc::new(BodyBudget::new(10));
        let mut held = Held { budget: Arc::clone(&budget), bytes: 0 };
        held.grow(8).unwrap();
        assert!(matches!(held.grow(3), Err(Problem::Overloaded)));
        drop(held);
        assert_eq!(budget.free.load(Ordering::Relaxed), 10);
    }
}
