use std::io::Write;

use clap::Args;

use crate::{exit::Exit, port::PortArg, present::Format, source::Source};

/// Explain why a connection is allowed or denied
#[derive(Args)]
#[command(
    after_help = "Example:\n  weir explain -f examples/shop --from shop/web --to shop/db --port 5432"
)]
pub(crate) struct Explain {
    #[command(flatten)]
    source: Source,
    /// Who connects
    #[arg(long, value_name = "END")]
    from: String,
    /// To whom
    #[arg(long, value_name = "END")]
    to: String,
    /// The port at the destination
    #[arg(long, value_name = "PORT[/PROTOCOL]")]
    port: PortArg,
    /// How to print it
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

impl Explain {
    pub(crate) fn run(&self, _out: &mut dyn Write) -> anyhow::Result<Exit> {
        Ok(Exit::Yes)
    }
}
