//! A stream that does its reader harm at a place that a test names.
//!
//! Wraps any stream; what is written passes untouched. What is read is looked at line by line, and in the first line that
//! holds a word the fault happens: once in the life of its [`Harm`], however many streams are opened with it.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::fakes::Gate;

/// What happens.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// The line comes in pieces of so many bytes.
    Chunks(usize),
    /// The line comes in pieces that end inside of its characters of more than one byte.
    SplitCharacters,
    /// The stream ends so many bytes after the beginning of the line; at its end if it is shorter.
    Cut(usize),
    /// Reading fails there.
    Error(usize),
    /// This stands there besides.
    Garbage(usize, &'static [u8]),
    /// Nothing comes from there on until the gate is open.
    Stall(usize, Arc<Gate>),
}

/// A fault, and the word of the line that it waits for.
#[derive(Debug)]
pub(crate) struct Harm {
    pub(crate) word: &'static str,
    pub(crate) fault: Fault,
    pub(crate) done: AtomicBool,
}

enum Piece {
    Bytes(Vec<u8>),
    End,
    Error,
    Wait(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// The stream.
pub(crate) struct Faulty<S> {
    inner: S,
    harm: Arc<Harm>,
    line: Vec<u8>,
    pieces: VecDeque<Piece>,
}

impl<S> Faulty<S> {
    pub(crate) fn new(inner: S, harm: Arc<Harm>) -> Self {
        Self { inner, harm, line: Vec::new(), pieces: VecDeque::new() }
    }

    /// Takes a whole line apart.
    fn take(&mut self, line: Vec<u8>) {
        let hit = String::from_utf8_lossy(&line).contains(self.harm.word);
        if !hit || self.harm.done.swap(true, Ordering::SeqCst) {
            self.pieces.push_back(Piece::Bytes(line));
            return;
        }
        let split = |at: usize| {
            let (before, rest) = line.split_at(at.min(line.len()));
            (Piece::Bytes(before.to_vec()), Piece::Bytes(rest.to_vec()))
        };
        match &self.harm.fault {
            Fault::Chunks(size) => {
                self.pieces.extend(line.chunks(*size).map(|chunk| Piece::Bytes(chunk.to_vec())));
            }
            Fault::SplitCharacters => {
                let pieces = line.split_inclusive(|byte| *byte >= 0xC0);
                self.pieces.extend(pieces.map(|piece| Piece::Bytes(piece.to_vec())));
            }
            Fault::Cut(at) => self.pieces.extend([split(*at).0, Piece::End]),
            Fault::Error(at) => self.pieces.extend([split(*at).0, Piece::Error]),
            Fault::Garbage(at, bytes) => {
                let (before, rest) = split(*at);
                self.pieces.extend([before, Piece::Bytes(bytes.to_vec()), rest]);
            }
            Fault::Stall(at, gate) => {
                let (before, rest) = split(*at);
                let gate = Arc::clone(gate);
                self.pieces.extend([before, Piece::Wait(Box::pin(async move { gate.pass().await })), rest]);
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Faulty<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            match this.pieces.front_mut() {
                Some(Piece::Bytes(bytes)) => {
                    if bytes.is_empty() {
                        this.pieces.pop_front();
                        continue;
                    }
                    // One piece a read, so that the reader sees where it ends.
                    let count = bytes.len().min(buf.remaining());
                    buf.put_slice(&bytes[..count]);
                    bytes.drain(..count);
                    return Poll::Ready(Ok(()));
                }
                Some(Piece::End) => return Poll::Ready(Ok(())),
                Some(Piece::Error) => return Poll::Ready(Err(io::Error::other("injected"))),
                Some(Piece::Wait(open)) => {
                    ready!(open.as_mut().poll(cx));
                    this.pieces.pop_front();
                }
                None => {
                    let mut bytes = [0; 4096];
                    let mut read = ReadBuf::new(&mut bytes);
                    ready!(Pin::new(&mut this.inner).poll_read(cx, &mut read))?;
                    if read.filled().is_empty() {
                        return Poll::Ready(Ok(()));
                    }
                    for byte in read.filled() {
                        this.line.push(*byte);
                        if *byte == b'\n' {
                            let line = std::mem::take(&mut this.line);
                            this.take(line);
                        }
                    }
                }
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Faulty<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
