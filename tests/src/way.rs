//! Where clones begin, and by which policy their pages become local.

/// All policies of tiering, the default first.
pub const POLICIES: [&str; 4] = ["mow", "moa", "hybrid", "copy"];

/// Where a clone begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In namespaces that are made for it.
    Scratch,
    /// In a container that waited.
    EmptyGhost,
    /// In a container that waited with the image.
    AttachedGhost,
}

impl Place {
    /// All of them.
    pub const ALL: [Place; 3] = [Place::Scratch, Place::EmptyGhost, Place::AttachedGhost];
    /// Those that are containers.
    pub const GHOSTS: [Place; 2] = [Place::EmptyGhost, Place::AttachedGhost];
}

/// A place and a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// When pages become local.
    pub tiering: &'static str,
    /// Where the clone begins.
    pub place: Place,
}

impl Way {
    /// Every policy in every place.
    pub fn all() -> impl Iterator<Item = Way> {
        let by = |place| POLICIES.map(|tiering| Way { tiering, place });
        Place::ALL.into_iter().flat_map(by)
    }

    /// Every policy in both kinds of ghost.
    pub fn in_ghosts() -> Vec<Way> {
        Way::all().filter(|way| way.place != Place::Scratch).collect()
    }

    /// Whether it is this policy, in this place.
    pub fn is(self, tiering: &str, place: Place) -> bool {
        self.tiering == tiering && self.place == place
    }

    /// As part of a test's name.
    pub fn name(self) -> String {
        let place = match self.place {
            Place::Scratch => "from_scratch",
            Place::EmptyGhost => "in_empty_ghost",
            Place::AttachedGhost => "in_attached_ghost",
        };
        format!("{}_{place}", self.tiering)
    }

    /// How `ghost start` makes the place for a clone of `image`, if it does.
    pub fn ghost(self, image: &str) -> Option<Vec<&str>> {
        match self.place {
            Place::Scratch => None,
            Place::EmptyGhost => Some(Vec::new()),
            Place::AttachedGhost => Some(vec!["--image", image, "--tiering", self.tiering]),
        }
    }

    /// The options of `restore` for it. An attached ghost has its policy already.
    pub fn options(self, ghost: Option<&str>) -> Vec<&str> {
        let inside = ghost.iter().flat_map(|ghost| ["--ghost", ghost]);
        let by = match self.place {
            Place::AttachedGhost => &[][..],
            _ => &["--tiering", self.tiering],
        };
        inside.chain(by.iter().copied()).collect()
    }
}
