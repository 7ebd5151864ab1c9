// Package checks looks at the arguments of calls before nodes do: nothing of a call is carried out by one node where
// another one would refuse it.
package checks

import (
	"context"
	"fmt"
	"slices"

	"github.com/skepkv/skep"
)

// Keys checks how many keys a call names, and the salt.
func Keys(op string, keys int, sc skep.Scope) error {
	if keys > skep.MaxChainKeys {
		return skep.Invalidf(op, "keys", keys, fmt.Sprintf("at most %d", skep.MaxChainKeys))
	}
	if len(sc.Salt) > skep.MaxSaltSize {
		return skep.Invalidf(op, "salt length in bytes", len(sc.Salt), fmt.Sprintf("at most %d", skep.MaxSaltSize))
	}
	return nil
}

// Block checks a block as its node would: nothing of a request is stored where something of it is bad.
func Block(
	op string, spec *skep.NamespaceSpec, part int64, depth, valid int, key skep.Key, parent *skep.Key, name []byte, m skep.Manifest,
) error {
	if err := skep.ValidateBlock(op, spec, depth, valid, key, parent, name, m); err != nil {
		return err
	}
	for _, p := range m {
		if p.Name == skep.PartKV && part != 0 && p.Size != part {
			return skep.Invalidf(op, "size of part "+p.Name, p.Size, fmt.Sprintf("%d, the size of the namespace's shape", part))
		}
	}
	return nil
}

// Ancestors checks what is said of the blocks before a put's parent, and that a block of that key is none of them.
func Ancestors(op string, before []skep.Key, depth int, own ...skep.Key) error {
	if most := max(0, depth-1); len(before) > most {
		return skep.Invalidf(op, "ancestors", len(before), fmt.Sprintf("at most %d, as there are blocks before the parent", most))
	}
	for _, k := range own {
		if slices.Contains(before, k) {
			return skep.Invalidf(op, "ancestors", k, "blocks before it")
		}
	}
	return nil
}

// Put checks every block of a put.
func Put(op string, spec *skep.NamespaceSpec, part int64, r *skep.PutRequest) error {
	for i := range r.Blocks {
		b := &r.Blocks[i]
		parent, depth := r.Behind(spec, i)
		m := make(skep.Manifest, len(b.Parts))
		for j, p := range b.Parts {
			if m[j] = (skep.PartSpec{Name: p.Name, Size: int64(len(p.Bytes))}); p.Name == "" {
				m[j].Name = skep.PartKV
			}
		}
		if err := Block(op, spec, part, depth, b.ValidTokens, b.Key, parent, b.Name, m); err != nil {
			return err
		}
	}
	return nil
}

// Ended is the error of a call whose context has ended; nil: it has not.
func Ended(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return &skep.Error{Op: op, Kind: skep.Deadline, Err: err}
	}
	return nil
}

// OutOfTime is the error of a call of ctx's caller that had a time of its own: the node that took longer is away.
func OutOfTime(ctx context.Context, op string, err error) error {
	if ctx.Err() == nil && skep.KindOf(err) == skep.Deadline {
		return &skep.Error{Op: op, Kind: skep.Unavailable, Err: err}
	}
	return err
}
