// Package pinned registers a store's memory with its drives, part by part as it is used: what is registered is
// resident, and a store that has read little keeps little. Reads into what is not registered work, at the cost of some
// CPU.
package pinned
