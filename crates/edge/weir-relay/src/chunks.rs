use std::{iter::Peekable, vec};

use hyper::body::Bytes;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{span::FrameBytes, state::Delivery};

/// The most bytes in one write.
const MAX_CHUNK_BYTES: usize = 16 << 10;

/// What an agent receives, in chunks of limited size. Only the chunk is a copy: agents share frames.
pub(crate) struct Chunks {
    /// The rest of a frame that is larger than a chunk.
    rest: Bytes,
    frames: Peekable<vec::IntoIter<FrameBytes>>,
    /// The delivery of these frames, which waits until all of them have been taken.
    current: Option<Delivery>,
    deliveries: UnboundedReceiver<Delivery>,
}

impl Chunks {
    /// A list, and then the deliveries.
    pub(crate) fn new(list: Vec<FrameBytes>, deliveries: UnboundedReceiver<Delivery>) -> Self {
        let frames = list.into_iter().peekable();
        Chunks { rest: Bytes::new(), frames, current: None, deliveries }
    }

    /// Whether everything that has arrived was taken.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.rest.is_empty() && self.frames.peek().is_none() && self.deliveries.is_empty()
    }

    /// The next chunk; `None` if the agent must list again.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        let mut chunk = Vec::new();
        while self.rest.is_empty() {
            if let Some(frame) = self.frames.peek() {
                if chunk.len() + frame.len() <= MAX_CHUNK_BYTES {
                    chunk.extend_from_slice(frame);
                    self.frames.next();
                } else if chunk.is_empty() {
                    self.rest = self.frames.next().map(Bytes::from_owner)?;
                } else {
                    return Some(chunk.into());
                }
                continue;
            }
            self.current = None;
            let mut delivery = if chunk.is_empty() {
                self.deliveries.recv().await?
            } else {
                match self.deliveries.try_recv() {
                    Ok(delivery) => delivery,
                    Err(_) => return Some(chunk.into()),
                }
            };
            self.frames = std::mem::take(&mut delivery.frames).into_iter().peekable();
            self.current = Some(delivery);
        }
        Some(self.rest.split_to(self.rest.len().min(MAX_CHUNK_BYTES)))
    }
}
