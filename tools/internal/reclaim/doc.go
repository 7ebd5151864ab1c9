// Package reclaim measures how fast lent GPU memory comes back, and how fast a borrower does
// without it: with processes of their own that restore from lent memory all the time, compare
// every byte, and are killed. skep runs it on simulated GPUs, skep-gpu on whatever it was built for.
package reclaim
