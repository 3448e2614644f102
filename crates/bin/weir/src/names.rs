use std::{collections::BTreeMap, io::Write, net::IpAddr};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use weir_model::Name;

use crate::{
    agent::ADDRESS,
    drops::fetch,
    exit::Exit,
    failure::Failure,
    observe::agent_address,
    present::{
        self, Schema, Structured,
        style::STRONG,
        table::{self, Cell},
    },
};

/// Show the addresses of domain names that rules of this node mention
///
/// Policies can allow connections to domain names. The agent of this node learns the addresses from
/// the DNS answers that pods receive. Each address stands for its name until the given time, and
/// later if another answer has it. Established connections continue after that.
///
/// The exit status is 1 if no name or address matches.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir names\n  weir names api.example.com\n  weir names 198.51.100.1 -o json"
)]
pub(crate) struct NamesCommand {
    /// Show only this name or address
    #[arg(value_name = "NAME|ADDRESS")]
    of: Option<String>,
    /// The HTTP address of the agent
    #[arg(long, value_name = "ADDRESS", default_value = ADDRESS, value_parser = agent_address)]
    agent: String,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: NamesFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NamesFormat {
    /// Human-readable text
    Text,
    /// For programs
    Json,
}

/// The answer of an agent.
#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NamesPage {
    pub(crate) names: Vec<NamedAddress>,
    /// Why the agent cannot observe DNS answers, if it cannot.
    names_unavailable: Option<String>,
}

/// An address that a name stands for.
#[derive(Deserialize, Serialize)]
pub(crate) struct NamedAddress {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) until: String,
}

impl NamesPage {
    /// The addresses of each name.
    pub(crate) fn domains(&self) -> BTreeMap<Name, Vec<IpAddr>> {
        let mut domains: BTreeMap<Name, Vec<IpAddr>> = BTreeMap::new();
        for known in &self.names {
            if let Ok(address) = known.address.parse() {
                domains.entry(known.name.as_str().into()).or_default().push(address);
            }
        }
        domains
    }

    /// Which names an address stands for, and until when.
    pub(crate) fn notes(&self, address: IpAddr) -> impl Iterator<Item = String> {
        let address = address.to_string();
        let names = self.names.iter().filter(move |known| known.address == address);
        names.map(|known| {
            format!("{} stands for {} until {}", known.address, known.name, known.until)
        })
    }
}

impl NamesCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let mut page = request(&self.agent)?;
        if let Some(of) = &self.of {
            let name = of.strip_suffix('.').unwrap_or(of).to_ascii_lowercase();
            page.names.retain(|known| known.name == name || known.address == name);
        }
        let exit = Exit::when(self.of.is_none() || !page.names.is_empty());
        match self.output {
            NamesFormat::Json => present::value(out, Structured::Json, Schema::Names, &page)?,
            NamesFormat::Text if page.names.is_empty() => {
                anstream::eprintln!("no DNS answer gave an address of such a name");
            }
            NamesFormat::Text => {
                let head = ["name", "address", "until"].map(|title| Cell::new(title, STRONG));
                let row = |known: &NamedAddress| {
                    [&known.name, &known.address, &known.until].map(Cell::from).to_vec()
                };
                let rows: Vec<Vec<Cell>> =
                    [head.to_vec()].into_iter().chain(page.names.iter().map(row)).collect();
                table::write(out, 0, &rows)?;
            }
        }
        Ok(exit)
    }
}

/// Requests the names from an agent, and prints why it has none.
pub(crate) fn request(agent: &str) -> anyhow::Result<NamesPage> {
    let body = fetch(agent, "/names", 0).map_err(|error| {
        let hint = "start `weir agent` on this node, or give its address with `--agent`";
        Failure::new(format!("no agent answers at {agent}: {error:#}"), hint)
    })?;
    let page: NamesPage = serde_json::from_str(&body).map_err(|_| {
        let hint = "check the address in `--agent`";
        Failure::new(format!("the server at {agent} is not a weir agent"), hint)
    })?;
    if let Some(why) = &page.names_unavailable {
        anstream::eprintln!("{why}");
    }
    Ok(page)
}
