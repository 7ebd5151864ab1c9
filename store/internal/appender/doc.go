// Package appender writes blocks and log entries to stripe groups. It is the only driver of writes: what users put,
// what is moved, and what only the logs are told go through it.
//
// An append is blocks that are placed together and share log pages and a catalog batch (Append):
//
//	place    cells and log pages are taken in the open group of a stream (package space), up to 16 MiB or 512 blocks
//	start    payload is written straight from the caller's memory where that is aligned (gather.go), or from
//	         ciphertext (seal.go), or from pages that small blocks share (packed.go); checksums are computed while
//	         the drives are busy; then each log gets its entries (log.go)
//	finish   all writes have ended; blocks of a durable namespace: every drive of the group is flushed; package commit
//	         makes the blocks known
//
// Who calls it:
//
//	Write             puts: several appends are under way at once, and what a drive refuses is put elsewhere (retry.go)
//	Rewrite, Moved    blocks that were read from elsewhere: one append, begun and ended
//	Entries           log entries that are no blocks, on two drives
//	LastMark          the mark of an orderly end
//
// Memory that drives write from is a Loan, or the append's own: it is back when the last write has ended, however long
// ago the call was answered.
package appender
