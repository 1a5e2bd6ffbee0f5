//! Guests of the mini VMM whose memory a page server fills.

mod bed;
mod child;
mod discard;
mod hot;
mod kill;
mod peers;
mod real;
mod unreadable;
mod walk;
