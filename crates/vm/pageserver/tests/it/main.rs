//! Guests of the mini VMM whose memory a page server fills.

mod bed;
mod child;
mod discard;
mod hot;
mod kill;
mod peers;
mod real;
mod replay;
mod steps;
mod unreadable;
mod walk;
