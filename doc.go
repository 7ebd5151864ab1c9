// Package skep is the API of skep, the database for LLM KV caches, as one
// document: the words, the interfaces every Store satisfies, and the errors they
// return. It does no I/O and starts no goroutine.
//
// # The story
//
// A serving engine computes, for every token of a prompt and every layer of its
// model, keys and values that attention reads again for each following token.
// skep keeps them. What it keeps is a block: the KV of B consecutive tokens over
// all layers, immutable, in block-major order
//
//	[layer][K,V][head][token][dim]        (Order HND, the default)
//
// so that a layer is one contiguous range and a head of it is one too. B and the
// rest of the geometry are a Shape: attention with one or many KV heads (MHA,
// GQA), a latent per token (MLA), or opaque bytes.
//
// A block is named by a Key: 32 bytes, the engine's chained prefix hash, in which
// block i's key depends on the tokens of all blocks up to i. The ordered keys of a
// prompt are a chain; block i's parent is block i-1. A block is rooted when all
// its ancestors are stored too, and only rooted blocks are ever found, so a
// chain that is found has no hole in it.
//
// Keys live in a namespace: one tenant's blocks of one model fingerprint in one
// Shape. A Salt is a per-user secret mixed into what is stored, so that two users
// of one namespace do not see each other. Nothing crosses from one namespace or
// salt to another, not even the time a hit takes.
//
// A block has parts ("kv" is the usual one; "boundary", "state", a quantised
// variant are others). Its Manifest lists them; the block becomes visible with all
// of them or not at all.
//
// # A Store is a Store
//
// The embedded engine (package store), the network client (wire) and the GPU tier
// (gpu) satisfy the same interfaces and pass the same contract test
// (store/storetest), so they nest and an engine need not care which one it holds.
// One capability is one interface; ask for the smallest.
//
//	Lookup    keys in, longest restorable prefix out, with a lease on it
//	Put       whole blocks in one call, or begin, write parts from many writers, commit
//	Restore   a session that loads many chains in a chosen order into given memory,
//	          while the caller claims what it computes itself, reprioritises, stops
//	Lease     renew or release what a lookup promised
//	Hint      what is known of blocks' future, pins among it
//	Delete    blocks, or with Purge all of a namespace, model, tenant or salt
//	Alloc     memory that puts and restores use without a copy
//	Stats     what the store does, and Events, a stream of what happens to blocks
//
// The rest is opening and listing namespaces, ListKeys, Sidecar and DeviceOf: see Store.
//
// Namespace is a handle that makes the common calls for one namespace; Load and Stored do what each caller of Restore
// and Put needs.
//
// # Buffers
//
// Every signature says who owns memory and until when. Three rules cover most:
//
//   - Bytes given to a put are read until the call returns and never after it has
//     returned a result; they are never written to.
//   - The memory a restore delivers into belongs to the store from Restore until
//     the session says it is released: until Next has delivered io.EOF, or Stop or
//     Close has returned nil. A drive may complete a read minutes late and nothing
//     can stop it writing, so release waits for it; when a wait ends early with an
//     error of kind NotReleased, the memory is still the store's.
//   - Memory a call returns with a Release method is the caller's to read until it
//     calls Release.
//
// # Promises
//
// A Lease is a promise: what a lookup found stays restorable until it ends. What a
// lookup promised and a restore within the lease could not deliver is counted
// (Stats.BrokenPromises), whatever the reason.
//
// Bytes are checked granule by granule, from put to delivery. What does not match
// is a miss with a reason, never bytes.
//
// The store being slow, full or gone costs an engine a miss, never an answer: every
// call that waits takes a context, and internal waits have deadlines of their own.
package skep
