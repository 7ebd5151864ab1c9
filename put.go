package skep

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// PartKV is the name of the part that holds a block's K and V (or latent, or bytes).
const PartKV = "kv"

// Limits of a block.
const (
	MaxParts        = 16
	MaxPartNameSize = 64
	// MaxBlockNameSize is the longest original name kept with a block, in bytes.
	MaxBlockNameSize = 2048
	// MaxPutBlocks is the most blocks one Put may carry.
	MaxPutBlocks = 1 << 16
	// MaxDepth is the depth of the deepest block that can be put. A lookup and a restore name a chain from its first block
	// on, and so reach none deeper than MaxChainKeys-1.
	MaxDepth = 1<<24 - 1
)

// DefaultPutTimeout is how long an open BlockWriter lives when nobody commits it.
const DefaultPutTimeout = time.Minute

// MaxPutTimeout is the longest that a BlockWriter may be asked to live.
const MaxPutTimeout = time.Hour

// PartSpec names one part of a block and its size in bytes.
type PartSpec struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// Manifest lists a block's parts. The block becomes visible with all of them.
type Manifest []PartSpec

// Part is one part's bytes.
type Part struct {
	Name  string // "" means PartKV
	Bytes []byte // read until the call returns, never written to
}

// Block is one whole block to be put.
type Block struct {
	Key         Key
	Name        []byte // the engine's own name, kept with the block; may be nil
	ValidTokens int    // of a partial tail; 0 means all B
	// Replaces is a partial tail this block makes superfluous, of another key; it is dropped, leased or not, when this one
	// is committed.
	Replaces *Key
	Parts    []Part
}

// Ack says which of a put's two events the caller waits for.
type Ack uint8

const (
	// AckCommitted waits until the block is stored as its namespace's class promises. Where the store admits Cache blocks
	// to its drives by what they are used for (store.Options.Admission), a Cache block is Accepted instead: it is readable
	// from memory, a crash loses it until the store has decided, and an event of kind EventCommitted or EventEvicted
	// tells what it decided. Flush has it decide at once. Durable blocks are never held back so.
	AckCommitted Ack = 0
	// AckAccepted waits until the bytes are copied and readable from memory; the
	// commit follows, as an event, and a Flush waits for it.
	AckAccepted Ack = 1
)

// PutRequest puts whole blocks in one call: a run of successive blocks of a chain,
// or independent blocks: the first ones of many chains, or those of an unchained namespace.
type PutRequest struct {
	Scope
	Parent *Key // of the first block; nil when it is a chain's first, and in unchained namespaces
	Depth  int  // of the first block: 0 for a chain's first
	// Each says that every block is the first of a chain of its own: Parent and Depth are unset. In an unchained namespace
	// blocks are that anyway.
	Each bool
	// Ancestors are the keys before Parent, the nearest last, as many as the caller knows and wants to say. A cluster needs
	// them to place a block by the beginning of its group, where it has not seen the parent lately; other Stores do not
	// look at them.
	Ancestors []Key
	Blocks    []Block
	Ack       Ack
	// Exposed says that others may write to the parts' bytes meanwhile: what is stored is a copy,
	// and the memory is the caller's again when Put returns.
	Exposed bool
	// Released is called once when Put has returned, or is about to return, NotReleased: then no
	// drive reads the parts' bytes any more. It must not block.
	Released func()
}

// Validate returns an Invalid error naming the first field that is outside its limits in any namespace.
func (r *PutRequest) Validate() error {
	const op = "put"
	switch {
	case len(r.Blocks) > MaxPutBlocks:
		return Invalidf(op, "blocks", len(r.Blocks), fmt.Sprintf("at most %d", MaxPutBlocks))
	case r.Ack != AckCommitted && r.Ack != AckAccepted:
		return Invalidf(op, "ack", r.Ack, "committed or accepted")
	case r.Each && (r.Parent != nil || r.Depth != 0):
		return Invalidf(op, "parent and depth", "set", "unset where each block begins a chain")
	}
	for i := range r.Blocks {
		if err := checkReplaces(op, r.Blocks[i].Key, r.Blocks[i].Replaces); err != nil {
			return err
		}
	}
	return r.Scope.validate(op)
}

// checkReplaces refuses a block that would be dropped when it is committed.
func checkReplaces(op string, key Key, replaces *Key) error {
	if replaces != nil && *replaces == key {
		return Invalidf(op, "replaces", key.Short(), "another key than the block's own")
	}
	return nil
}

// Behind is the parent and the depth of block i.
func (r *PutRequest) Behind(n *NamespaceSpec, i int) (parent *Key, depth int) {
	if i == 0 || r.Each || !n.Chained {
		return r.Parent, r.Depth
	}
	return &r.Blocks[i-1].Key, r.Depth + i
}

// Held takes NotReleased off an error of Put: held says that drives have the parts' bytes yet, and rest is
// what there is to say besides.
func Held(err error) (rest error, held bool) {
	var e *Error
	if errors.As(err, &e) && e.Kind == NotReleased {
		return e.Err, true
	}
	return err, false
}

// Outcome is what became of one block of a put. The numbers travel on the wire.
type Outcome uint8

const (
	// Declined: not stored, for PutResult.Reason.
	Declined Outcome = 0
	// Committed: stored as the namespace's class promises.
	Committed Outcome = 1
	// Accepted: readable from memory; what follows is a commit, or an eviction where the block is not admitted.
	Accepted Outcome = 2
	// Exists: an earlier writer of this key won (chained namespaces only).
	Exists Outcome = 3
)

func (o Outcome) String() string {
	switch o {
	case Declined:
		return "declined"
	case Committed:
		return "committed"
	case Accepted:
		return "accepted"
	case Exists:
		return "exists"
	}
	return fmt.Sprintf("outcome %d", uint8(o))
}

// PutResult is what became of one block.
type PutResult struct {
	Outcome Outcome
	// Reason is why it was declined: Full, ReadOnly, Quota, Admission, DeviceFailed; by a network client also Unavailable,
	// Overloaded, and of a cluster Denied: a node lacks the tenant's encryption key.
	Reason  Kind
	Differs bool // Exists, and the stored bytes are not the ones given
}

// String is the outcome, and what there is to say about it: "declined: full", "exists: other bytes".
func (r PutResult) String() string {
	switch {
	case r.Outcome == Declined:
		return r.Outcome.String() + ": " + r.Reason.Error()
	case r.Differs:
		return r.Outcome.String() + ": other bytes"
	}
	return r.Outcome.String()
}

// Stored is nil where the store has every block of a put, under the Outcome Committed, Accepted or Exists. Else it
// says how many were declined and which was the first; its Kind is that one's Reason, so that errors.Is(err,
// skep.Full) works.
func Stored(results []PutResult) error {
	declined, first := 0, 0
	for i := len(results) - 1; i >= 0; i-- {
		if results[i].Outcome == Declined {
			declined, first = declined+1, i
		}
	}
	if declined == 0 {
		return nil
	}
	return &Error{Op: "put", Kind: results[first].Reason,
		Err: fmt.Errorf("%d of %d blocks declined, the first is block %d of the put", declined, len(results), first)}
}

// WantRequest asks which of a chain's blocks a put would store.
type WantRequest struct {
	Scope
	Keys []Key // lent for the call
	// Bytes is what a put of them all would store. A Store that refuses by size declines, as Full or Quota, what is more
	// than it takes: the one in memory does, where it has caps. The engine, which evicts to make room, does not look at
	// it.
	Bytes int64
}

// Want answers for one key: Wanted, or why not (Exists, or Declined with a reason).
type Want struct {
	Wanted  bool
	Outcome Outcome
	Reason  Kind
}

// Putter stores blocks.
type Putter interface {
	// Want says which blocks are wanted, before the caller copies them out of a GPU.
	// It promises nothing.
	//
	// Errors: Invalid, NotFound (no such namespace).
	Want(ctx context.Context, r *WantRequest) ([]Want, error)
	// Put stores whole blocks and reports one result a block, in order. A block is
	// declined without failing its neighbours, and without an error: Stored makes one of the results. An error means
	// none is known to be stored. It returns when the Ack asked for is reached. The parts' bytes are read
	// until it returns (a copy is made only for AckAccepted, for Exposed, or when they are
	// not aligned to 4 KiB); a cancelled Put returns early with its blocks in doubt: whole
	// or absent. Nothing takes memory back from a drive: where one has not let go of the
	// parts' bytes, which a cancelled Put and a drive that hangs bring about, the error is
	// NotReleased, and they are the caller's when PutRequest.Released was called. It wraps the error
	// there was; with none the results are given beside it.
	//
	// Errors: Invalid (the first block that is bad; none is stored), NotFound (no such namespace), NotReleased,
	// Overloaded (too many calls are under way), Denied (the tenant's encryption key is not there). A network client
	// that reaches no server declines the blocks, as Unavailable, unless it is strict.
	Put(ctx context.Context, r *PutRequest) ([]PutResult, error)
	// Begin opens a block for several writers. Either Commit or Abort must be called;
	// after BeginRequest.Timeout the store aborts it.
	//
	// Errors: Invalid, NotFound (no such namespace), NoMemory and Quota (open blocks hold what they may, of all tenants
	// or of this one), Denied as of Put.
	Begin(ctx context.Context, r *BeginRequest) (BlockWriter, error)
	// Flush returns when every block accepted before it was called is committed or
	// declined, and what was committed before survives the end of the process, whatever its
	// Class. It waits for the drives and the catalog.
	//
	// Errors: none but those of every call (Store).
	Flush(ctx context.Context) error
}

// BeginRequest opens one block for writing part by part.
type BeginRequest struct {
	Scope
	Parent      *Key
	Depth       int
	Ancestors   []Key // as of a PutRequest
	Key         Key
	Name        []byte
	ValidTokens int
	Replaces    *Key
	Manifest    Manifest
	Timeout     time.Duration // 0: DefaultPutTimeout; at most MaxPutTimeout
}

// Validate returns an Invalid error naming the first field that is outside its limits in any namespace.
func (r *BeginRequest) Validate() error {
	const op = "begin"
	if r.Timeout < 0 || r.Timeout > MaxPutTimeout {
		return Invalidf(op, "timeout", r.Timeout, "0 to "+MaxPutTimeout.String())
	}
	if err := checkReplaces(op, r.Key, r.Replaces); err != nil {
		return err
	}
	return r.Scope.validate(op)
}

// BlockWriter takes a block's parts from as many writers as it has owners
// (tensor-parallel ranks, pipeline stages, layers as they are computed). Its
// methods may be called from several goroutines. Once it was committed or aborted, by its Timeout too, Write and Commit
// return Closed.
type BlockWriter interface {
	// Write copies p to offset bytes into the part. Ranges may come in any order, and
	// must neither overlap nor pass the part's end. p is the caller's again on return.
	//
	// Errors: Invalid, Closed; Quota and NoMemory when the list of pieces that lie apart would take more than open blocks
	// may.
	Write(ctx context.Context, part string, offset int64, p []byte) error
	// Commit stores the block, as Put does, or says that it was declined.
	//
	// Errors: those of Put; Invalid when a byte of the manifest was not written, and the writer stays open then; NotFound
	// when what it was begun in has been deleted or purged since; Closed.
	Commit(ctx context.Context, ack Ack) (PutResult, error)
	// Abort drops what was written. Aborting a committed or aborted block is not an error.
	Abort(ctx context.Context) error
}

// ValidTokensIn is the number of valid tokens of a block of s whose ValidTokens
// field is v.
func ValidTokensIn(s Shape, v int) int {
	if v == 0 {
		return s.BlockTokens
	}
	return v
}

// ValidateBlock checks one block's identity and manifest against its namespace.
func ValidateBlock(op string, n *NamespaceSpec, depth, validTokens int, key Key, parent *Key, name []byte, m Manifest) error {
	if len(name) > MaxBlockNameSize {
		return Invalidf(op, "name length in bytes", len(name), fmt.Sprintf("at most %d", MaxBlockNameSize))
	}
	if validTokens < 0 || validTokens > n.Shape.BlockTokens {
		return Invalidf(op, "valid tokens", validTokens, fmt.Sprintf("0 to %d", n.Shape.BlockTokens))
	}
	switch {
	case !n.Chained && (parent != nil || depth != 0):
		return Invalidf(op, "parent and depth", "set", "unset in an unchained namespace")
	case n.Chained && depth < 0 || depth > MaxDepth:
		return Invalidf(op, "depth", depth, fmt.Sprintf("0 to %d", MaxDepth))
	case n.Chained && (parent == nil) != (depth == 0):
		return Invalidf(op, "depth", depth, "0 exactly when there is no parent")
	case parent != nil && *parent == key:
		return Invalidf(op, "parent", key, "another block's key")
	}
	if len(m) < 1 || len(m) > MaxParts {
		return Invalidf(op, "parts", len(m), fmt.Sprintf("1 to %d", MaxParts))
	}
	var total int64
	for i, p := range m {
		if p.Name == "" || len(p.Name) > MaxPartNameSize {
			return Invalidf(op, "part name length in bytes", len(p.Name), fmt.Sprintf("1 to %d", MaxPartNameSize))
		}
		if p.Size < 0 || p.Size > MaxPartBytes {
			return Invalidf(op, "size of part "+p.Name, p.Size, fmt.Sprintf("0 to %d", int64(MaxPartBytes)))
		}
		total += p.Size
		for _, q := range m[:i] {
			if q.Name == p.Name {
				return Invalidf(op, "part "+p.Name, "named twice", "named once")
			}
		}
	}
	if total > MaxPartBytes {
		return Invalidf(op, "block size in bytes", total, fmt.Sprintf("at most %d", int64(MaxPartBytes)))
	}
	return m.validateBoundaries(op, &n.Shape)
}
