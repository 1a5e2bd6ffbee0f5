//! Programs that check themselves, and the driver that clones them in every flavour.
