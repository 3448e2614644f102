//! The local web page of weir. The page only draws: a [`PageData`](weir_view::page::PageData) makes every answer, with the
//! functions of the commands.
//!
//! ```text
//!  browser ── GET /app.js ────────► assets    files in the binary, without secrets
//!          ── POST /api + token ──► access ──► PageData::answer(PageRequest) ──► JSON
//!
//!  PageData ──► export   the same files and all answers, for a page without a server
//!  weir-playground        the same files, and a WebAssembly module that makes the answers
//! ```
//!
//! *Invariant*: the server listens on loopback only. It answers a request for data only if the
//! request has the token, names the server's own address, and does not come from another origin.

mod access;
mod assets;
mod export;
mod server;

pub use export::{ExportError, export};
pub use server::{Server, ServerError};
