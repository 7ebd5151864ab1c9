// Package ingest takes blocks into a store.
//
//	Prepare    checks the blocks of a put, before anything is stored
//	Put        stores them, and answers when the acknowledgement that was asked for is reached
//	Begin      opens a block that is written part by part, in any order, and then put
//
// Committed blocks go to package appender in front of the caller. Accepted ones are copied into the DRAM tier, where
// they are readable at once, and are written behind its back: at once, or when the admission filter says so. What
// could not be committed is withdrawn, but for what a lease or pin protects, which is tried again.
//
// Of a chain's block the first put wins, and a second one waits for it; else the last one wins. Package puts has who is
// under way.
package ingest
