//! Packed frames: several small frames in one, compressed.
//!
//! The first pod of an app on a node brings a policy and its peers, which are much alike, and so
//! are the objects of a list. Each packed frame is complete: neither side keeps a context for a
//! stream.

use std::sync::Arc;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::frame::packed_frame;

/// The fewest bytes that are compressed.
const MIN_BYTES: usize = 256;
/// The most bytes in a packed frame.
pub(super) const MAX_BYTES: usize = 16 << 10;
/// A frame above this size is sent as it is, so that agents share it.
const MAX_MEMBER_BYTES: usize = 2 << 10;

/// Packs frames.
#[derive(Debug)]
pub struct FramePacker(Compress);

impl Default for FramePacker {
    fn default() -> Self {
        FramePacker(Compress::new(Compression::fast(), false))
    }
}

impl FramePacker {
    /// Packs frames, in their order, where that makes them smaller.
    pub fn pack(&mut self, frames: Vec<Arc<[u8]>>) -> Vec<Arc<[u8]>> {
        if frames.iter().map(|frame| frame.len()).sum::<usize>() < MIN_BYTES {
            return frames;
        }
        let (mut out, mut group, mut bytes) = (Vec::new(), Vec::new(), 0);
        for frame in frames {
            let is_large = frame.len() > MAX_MEMBER_BYTES;
            if is_large || bytes + frame.len() > MAX_BYTES {
                self.add(std::mem::take(&mut group), &mut out);
                bytes = 0;
            }
            if is_large {
                out.push(frame);
            } else {
                bytes += frame.len();
                group.push(frame);
            }
        }
        self.add(group, &mut out);
        out
    }

    /// Adds frames, packed or as they are.
    fn add(&mut self, group: Vec<Arc<[u8]>>, out: &mut Vec<Arc<[u8]>>) {
        match self.compress(&group.concat()) {
            Some(packed) => out.push(packed_frame(&packed).into()),
            None => out.extend(group),
        }
    }

    /// Compresses bytes; `None` if that does not make them smaller.
    fn compress(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        if bytes.len() < MIN_BYTES {
            return None;
        }
        self.0.reset();
        let mut packed = Vec::with_capacity(bytes.len());
        let status = self.0.compress_vec(bytes, &mut packed, FlushCompress::Finish).ok()?;
        (status == Status::StreamEnd).then_some(packed)
    }
}

/// Expands the body of a packed frame; `None` if it is invalid or too large.
pub(super) fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(MAX_BYTES);
    let mut inflate = Decompress::new(false);
    let status = inflate.decompress_vec(packed, &mut bytes, FlushDecompress::Finish).ok()?;
    let is_complete = status == Status::StreamEnd && inflate.total_in() == packed.len() as u64;
    is_complete.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::relay::{
        SyncPoint, commit_frame,
        frame::{Frame, FrameReader, InvalidFrame},
        remove_frame,
    };
    use weir_model::{Key, PodId};

    fn removal(number: usize) -> Arc<[u8]> {
        remove_frame(&Key::Pod(PodId::new("shop", format!("web-{number:05}")))).unwrap().into()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Frame>, InvalidFrame> {
        let mut reader = FrameReader::default();
        reader.push(bytes);
        let mut frames = Vec::new();
        while let Some(frame) = reader.next()? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[test]
    fn frames_that_are_alike_become_small() {
        let frames: Vec<_> = (0..1_000).map(removal).collect();
        let packed = FramePacker::default().pack(frames.clone());
        let (before, after) = (frames.concat().len(), packed.concat().len());
        assert!(after * 4 < before, "{before} bytes became {after}");
        assert_eq!(packed.len(), before.div_ceil(MAX_BYTES));
    }

    #[test]
    fn few_bytes_and_large_frames_stay_as_they_are() {
        let mut packer = FramePacker::default();
        let few = vec![removal(1), removal(2)];
        assert_eq!(packer.pack(few.clone()), few);
        let large: Arc<[u8]> = vec![1; MAX_MEMBER_BYTES + 1].into();
        let frames = vec![removal(1), large, removal(2)];
        assert_eq!(packer.pack(frames.clone()), frames);
    }

    #[test]
    fn invalid_packed_frames_are_errors() {
        let frames = || (0..100).map(removal).collect::<Vec<_>>();
        let content = frames().concat();
        let packed = FramePacker::default().pack(frames());
        assert_eq!(read(&packed.concat()).map(|frames| frames.len()), Ok(100));
        let compress = |bytes: &[u8]| FramePacker::default().compress(bytes).unwrap();
        let of = |bytes: &[u8]| read(&packed_frame(bytes));
        // Truncated, with another byte, with a part of a frame, too large, and packed twice.
        let whole = compress(&content);
        assert_eq!(of(&whole[..whole.len() - 1]), Err(InvalidFrame));
        assert_eq!(of(&[&whole[..], &[0]].concat()), Err(InvalidFrame));
        assert_eq!(of(&compress(&content[..content.len() - 1])), Err(InvalidFrame));
        assert_eq!(of(&compress(&vec![0; 1 << 20])), Err(InvalidFrame));
        assert_eq!(
            of(&compress(&[&content[..], &packed_frame(&whole)].concat())),
            Err(InvalidFrame)
        );
    }

    proptest! {
        #[test]
        fn packed_frames_arrive_as_they_were_sent(lengths in vec(0_usize..4_000, 0..40)) {
            // Each commit has a version that identifies it.
            let mut frames: Vec<Arc<[u8]>> = Vec::new();
            for (number, length) in lengths.into_iter().enumerate() {
                let mut point = SyncPoint::default();
                point.set(0, number as u64 + 1);
                let name = "x".repeat(length);
                frames.push(remove_frame(&Key::Pod(PodId::new("shop", name))).unwrap().into());
                frames.push(commit_frame(&point).into());
            }
            let packed = FramePacker::default().pack(frames.clone());
            prop_assert!(packed.concat().len() <= frames.concat().len());
            prop_assert_eq!(read(&packed.concat()), read(&frames.concat()));
        }

        #[test]
        fn any_bytes_unpack_or_are_an_error(bytes in vec(any::<u8>(), 0..200)) {
            prop_assert!(unpack(&bytes).is_none_or(|bytes| bytes.len() <= MAX_BYTES));
            _ = read(&packed_frame(&bytes));
        }
    }
}
