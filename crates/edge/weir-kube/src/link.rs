use std::{cell::RefCell, rc::Rc};

use kube::Client;

use crate::{Access, ReadError};

/// The client that all share, made anew when it no longer works.
#[derive(Clone)]
pub(crate) struct Link {
    access: Access,
    made: Rc<RefCell<Made>>,
}

#[derive(Default)]
struct Made {
    client: Option<Client>,
    count: u64,
}

impl Link {
    pub(crate) fn new(access: Access) -> Self {
        Link { access, made: Rc::default() }
    }

    /// The client, and which one it is.
    pub(crate) async fn client(&self) -> Result<(Client, u64), ReadError> {
        if let Made { client: Some(client), count } = &*self.made.borrow() {
            return Ok((client.clone(), *count));
        }
        let client = self.access.client().await?;
        let mut made = self.made.borrow_mut();
        made.count += 1;
        made.client = Some(client.clone());
        Ok((client, made.count))
    }

    /// The client no longer works. If another was made in the meantime, that one stays.
    pub(crate) fn renew(&self, count: u64) {
        let mut made = self.made.borrow_mut();
        if made.count == count {
            made.client = None;
        }
    }
}
