//! A connection that is given up once the client has taken nothing of its answer for too long. hyper bounds the wait for
//! a request; nothing there bounds the wait for a reader, and each one holds an answer in memory.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Wraps a stream whose writes may be pending for at most `limit` at a time.
pub struct Patience<S> {
    stream: S,
    limit: Duration,
    /// Runs while a write is pending.
    clock: Option<Pin<Box<Sleep>>>,
}

impl<S> Patience<S> {
    /// Wraps `stream`.
    pub fn new(stream: S, limit: Duration) -> Self {
        Patience { stream, limit, clock: None }
    }

    fn judge<T>(&mut self, context: &mut Context<'_>, written: Poll<Result<T>>) -> Poll<Result<T>> {
        if written.is_ready() {
            self.clock = None;
            return written;
        }
        let clock = self.clock.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        ready!(clock.as_mut().poll(context));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client takes nothing of its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patience<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patience<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_is_given_up_and_a_slow_one_is_not() {
        let limit = Duration::from_secs(30);
        let (near, mut far) = duplex(8);
        let mut patient = Patience::new(near, limit);
        let reader = tokio::spawn(async move {
            let mut bytes = [0; 8];
            for _ in 0..10 {
                tokio::time::sleep(limit / 2).await;
                far.read_exact(&mut bytes).await.unwrap();
            }
            far
        });
        patient.write_all(&[7; 80]).await.unwrap();
        let _far = reader.await.unwrap();
        let error = patient.write_all(&[7; 80]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
