//! The axes of the matrix, its cells, and a selection of cells that shows every pair of values.

use std::collections::HashSet;

/// A published revision, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Revision {
    /// 2024-11-05
    R1,
    /// 2025-03-26
    R2,
    /// 2025-06-18
    R3,
    /// 2025-11-25
    R4,
    /// 2026-07-28
    R5,
}

pub(super) use Revision::{R1, R2, R3, R4, R5};

impl Revision {
    const ALL: [Self; 5] = [R1, R2, R3, R4, R5];

    /// The wire form.
    pub(super) fn wire(self) -> &'static str {
        match self {
            R1 => "2024-11-05",
            R2 => "2025-03-26",
            R3 => "2025-06-18",
            R4 => "2025-11-25",
            R5 => "2026-07-28",
        }
    }

    /// Without a handshake, every request by itself.
    pub(super) fn is_modern(self) -> bool {
        self == R5
    }
}

/// Carrier of the client's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Front {
    Streamable,
    /// HTTP+SSE of 2024-11-05; newer clients speak over it as well.
    Events,
    Socket,
}

impl Front {
    const ALL: [Self; 3] = [Self::Streamable, Self::Events, Self::Socket];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Streamable => "Streamable HTTP",
            Self::Events => "HTTP+SSE",
            Self::Socket => "WebSocket",
        }
    }
}

/// Carrier of the upstream's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Back {
    Stdio,
    /// Streamable HTTP that answers every POST with one JSON object.
    Json,
    /// Streamable HTTP that answers every POST with an event stream.
    Sse,
    /// HTTP+SSE of 2024-11-05.
    Events,
    Socket,
}

impl Back {
    const ALL: [Self; 5] = [
        Self::Stdio,
        Self::Json,
        Self::Sse,
        Self::Events,
        Self::Socket,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::Json => "HTTP, JSON",
            Self::Sse => "HTTP, SSE",
            Self::Events => "HTTP+SSE",
            Self::Socket => "WebSocket",
        }
    }

    /// As a part of an upstream's name.
    fn tag(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::Json => "json",
            Self::Sse => "sse",
            Self::Events => "old",
            Self::Socket => "ws",
        }
    }
}

/// Kind of the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Shape {
    /// A pure endpoint: one upstream, unchanged.
    Pure,
    /// Two upstreams whose names are the same.
    Merged,
}

/// The other upstream of every merged endpoint.
pub(super) const TWIN: &str = "twin";

/// A client, an upstream, and their carriers and endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Cell {
    pub(super) client: Revision,
    pub(super) front: Front,
    pub(super) upstream: Revision,
    pub(super) back: Back,
    pub(super) shape: Shape,
}

impl Cell {
    /// Every possible cell.
    pub(super) fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for client in Revision::ALL {
            for front in Front::ALL {
                for upstream in Revision::ALL {
                    for back in Back::ALL {
                        for shape in [Shape::Pure, Shape::Merged] {
                            cells.push(Self {
                                client,
                                front,
                                upstream,
                                back,
                                shape,
                            });
                        }
                    }
                }
            }
        }
        cells.retain(|cell| cell.is_possible());
        cells
    }

    /// HTTP+SSE is of the legacy era alone.
    fn is_possible(self) -> bool {
        let front = self.front != Front::Events || !self.client.is_modern();
        front && (self.back != Back::Events || !self.upstream.is_modern())
    }

    /// A selection of [`Self::all`] in which every possible pair of values of two axes occurs.
    pub(super) fn pairwise() -> Vec<Self> {
        let all = Self::all();
        let mut missing: HashSet<_> = all.iter().flat_map(|cell| cell.pairs()).collect();
        let mut chosen = Vec::new();
        while !missing.is_empty() {
            let gain = |cell: &Self| cell.pairs().iter().filter(|p| missing.contains(*p)).count();
            // The last of the best, so that the selection is the same on every run.
            let best = *all.iter().max_by_key(|cell| gain(cell)).unwrap();
            for pair in best.pairs() {
                missing.remove(&pair);
            }
            chosen.push(best);
        }
        chosen
    }

    /// All pairs of the cell's values; each value is an axis and a number on the axis.
    fn pairs(self) -> Vec<[(u8, u8); 2]> {
        let values = [
            (0, self.client as u8),
            (1, self.front as u8),
            (2, self.upstream as u8),
            (3, self.back as u8),
            (4, self.shape as u8),
        ];
        let mut pairs = Vec::new();
        for (number, first) in values.iter().enumerate() {
            pairs.extend(values[number + 1..].iter().map(|second| [*first, *second]));
        }
        pairs
    }

    /// The upstream's name in the configuration.
    pub(super) fn upstream_name(self) -> String {
        format!("r{}-{}", self.upstream as u8 + 1, self.back.tag())
    }

    /// The path of the endpoint.
    pub(super) fn path(self) -> String {
        let root = match self.front {
            Front::Streamable => "mcp",
            Front::Events => "sse",
            Front::Socket => "ws",
        };
        let merged = match self.shape {
            Shape::Pure => "",
            Shape::Merged => "m-",
        };
        format!("/{root}/{merged}{}", self.upstream_name())
    }

    /// The name of a tool or prompt, as the endpoint shows it.
    pub(super) fn name(self, name: &str) -> String {
        match self.shape {
            Shape::Pure => name.to_owned(),
            Shape::Merged => format!("{}__{name}", self.upstream_name()),
        }
    }

    /// A URI, as the endpoint shows it.
    pub(super) fn uri(self, uri: &str) -> String {
        match self.shape {
            Shape::Pure => uri.to_owned(),
            Shape::Merged => format!("{}+{uri}", self.upstream_name()),
        }
    }

    /// The name of a principal that no other cell uses.
    pub(super) fn somebody(self, who: &str) -> String {
        format!("{who}-{:?}{}", self.client, self.path().replace('/', "-"))
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shape = match self.shape {
            Shape::Pure => "pure",
            Shape::Merged => "merged",
        };
        write!(
            f,
            "client {} over {}, upstream {} over {}, {shape}",
            self.client.wire(),
            self.front.name(),
            self.upstream.wire(),
            self.back.name()
        )
    }
}

#[test]
fn the_selection_shows_every_pair() {
    let shown: HashSet<_> = Cell::pairwise().iter().flat_map(|c| c.pairs()).collect();
    let possible: HashSet<_> = Cell::all().iter().flat_map(|c| c.pairs()).collect();
    assert_eq!(shown, possible);
    assert!(Cell::pairwise().len() * 3 < Cell::all().len());
}
