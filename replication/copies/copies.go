// Package copies makes one answer of what each of a block's nodes says of it.
package copies

import (
	"errors"
	"slices"

	"github.com/skepkv/skep"
)

// Merged is what became of a block of which each of its nodes, the first one first, says this; acks of them have to
// have it. Of two writers the first node that has it says who was first.
func Merged(of []skep.PutResult, acks int) skep.PutResult {
	var out skep.PutResult
	stored, committed, declined := 0, 0, skep.Unavailable
	for _, r := range slices.Backward(of) {
		switch r.Outcome {
		case skep.Declined:
			declined = r.Reason
			continue
		case skep.Committed, skep.Exists:
			committed++
		}
		stored++
		out.Outcome = r.Outcome
		if r.Differs {
			out.Differs = true
		}
	}
	switch {
	case stored < acks:
		return skep.PutResult{Outcome: skep.Declined, Reason: declined}
	case out.Differs:
		out.Outcome = skep.Exists // a copy with other bytes is nothing that was stored
	case out.Outcome == skep.Committed && committed < acks:
		out.Outcome = skep.Accepted
	}
	return out
}

// Merge makes one result of those of each block's nodes, the first one first, and has it in place of the first one's.
func Merge(of [][]skep.PutResult, acks int) {
	each := make([]skep.PutResult, len(of))
	for i := range of[0] {
		for k := range of {
			each[k] = of[k][i]
		}
		of[0][i] = Merged(each, acks)
	}
}

// Wanted is whether a block is, of which each of its nodes says this, the first one first. exists is what one of all
// nodes that have it says, of whom there are have; with acks of them it is stored.
func Wanted(of []skep.Want, exists skep.Want, have, acks int) skep.Want {
	if have >= acks {
		return exists
	}
	for _, w := range of {
		if w.Wanted {
			return w
		}
	}
	if have > 0 {
		return exists
	}
	return of[0]
}

// Having is how many nodes have the ith of the keys that each was asked for, nil where it did not answer, and what one
// of them says.
func Having(lists [][]skep.Want, i int) (exists skep.Want, have int) {
	for _, list := range lists {
		if list != nil && list[i].Outcome == skep.Exists && !list[i].Wanted {
			exists, have = list[i], have+1
		}
	}
	return exists, have
}

// Count is how many nodes have something.
func Count(has []bool) (n int) {
	for _, h := range has {
		if h {
			n++
		}
	}
	return n
}

// AllOf says that a node has all of n keys, by what it says of them.
func AllOf(list []skep.Want, n int) bool {
	return len(list) == n && !slices.ContainsFunc(list, func(w skep.Want) bool { return w.Outcome != skep.Exists })
}

// SomeDeclined says that a node declined a block.
func SomeDeclined(of ...[]skep.PutResult) bool {
	declined := func(r skep.PutResult) bool { return r.Outcome == skep.Declined }
	return slices.ContainsFunc(of, func(list []skep.PutResult) bool { return slices.ContainsFunc(list, declined) })
}

// Apart says which nodes lack something that others have, or may have who did not answer, or that none has yet. An
// error is that a node's map is newer.
func Apart(has []bool, errs []error) ([]bool, error) {
	out := make([]bool, len(has))
	for i := range out {
		if errors.Is(errs[i], skep.StaleMap) {
			return nil, errs[i]
		}
		for k := range has {
			out[i] = out[i] || !has[i] && (errs[i] == nil || k != i && (has[k] || errs[k] != nil))
		}
	}
	return out, nil
}

// LeaveStrays has a node say that it wants what it has of a chain's keys where no lookup would find that. A lookup asks
// the nodes that a block belongs to by its group, of so many; and where some were put by who did not know their group,
// the nodes that lead the first of these, which have what follows it, too.
func LeaveStrays(lists [][]skep.Want, group int, belongs, leads func(node, i int) bool) {
	for n, list := range lists {
		had, led := false, false
		for i := range list {
			has := list[i].Outcome == skep.Exists && !list[i].Wanted
			if has && (!had || i%group == 0) {
				led = leads(n, i)
			}
			if has && !led && !belongs(n, i) {
				list[i] = skep.Want{Wanted: true}
			}
			had = has
		}
	}
}

// Present is how many of keys some node has, each of them once.
func Present(keys []skep.Key, lists [][]skep.Want) (n int) {
	seen := make(map[skep.Key]struct{}, len(keys))
	for i, k := range keys {
		if _, twice := seen[k]; twice {
			continue
		}
		seen[k] = struct{}{}
		if _, have := Having(lists, i); have > 0 {
			n++
		}
	}
	return n
}

// Elsewhere says whether another node may have what one does not give for this reason.
func Elsewhere(err error) bool {
	switch skep.KindOf(err) {
	case skep.Stopped, skep.Deadline, skep.Claimed, skep.NotReleased, skep.Invalid, skep.Denied, skep.Unsupported, skep.NoMemory:
		return false
	}
	return true
}

// KeysOf is those of keys that go to a node, or those that do not, where at says where each goes.
func KeysOf[N comparable](keys []skep.Key, at []N, n N, its bool) (out []skep.Key) {
	for i, k := range keys {
		if (at[i] == n) == its {
			out = append(out, k)
		}
	}
	return out
}
