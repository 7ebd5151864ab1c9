package twopointer

import (
	"strings"

	"github.com/skepkv/skep"
)

// Policy is how restores are scheduled. All but Skep are what others do, or Skep with
// something left out; they exist to be compared with.
type Policy uint8

const (
	// Skep minimises Σ weight × completion over the batch; tokens or layers; stages on their own.
	Skep Policy = iota
	// Recompute loads nothing.
	Recompute
	// LoadOnly computes nothing of what is stored, requests in order of arrival (LMCache).
	LoadOnly
	// PerRequest has two pointers for each request and shares loading evenly (Cake).
	PerRequest
	// CacheFlow is the paper's Algorithm 1 as it is printed: whole chunks, loading for the
	// request with most left, by layers below L_Δ.
	CacheFlow
	// ShortestFirst is Skep loading for the request with least left.
	ShortestFirst
	// NoLayers is Skep without restoring by layers.
	NoLayers
	// NoStages is Skep whose stages wait for each other.
	NoStages
	// NoBatch is Skep that shares loading evenly.
	NoBatch
	policies
)

var policyNames = [policies]string{"skep", "recompute", "load", "per-request", "cacheflow", "shortest-first", "no-layers", "no-stages", "no-batch"}

func (p Policy) String() string {
	if p < policies {
		return policyNames[p]
	}
	return "unknown"
}

// Policies are all there are, in the order of a report.
func Policies() []Policy {
	return []Policy{Recompute, LoadOnly, PerRequest, CacheFlow, ShortestFirst, NoLayers, NoStages, NoBatch, Skep}
}

// PolicyNamed finds a policy; Invalid when there is none of that name.
func PolicyNamed(name string) (Policy, error) {
	for i, n := range policyNames {
		if n == name {
			return Policy(i), nil
		}
	}
	return 0, skep.Invalidf("two-pointer", "policy", name, strings.Join(policyNames[:], ", "))
}

// traits are what the scheduler asks of a policy.
type traits struct {
	loads, computes bool // at all
	layers          bool // may go by layers
	exact           bool // splits the last chunks where both would end together, and sizes launches
	even            bool // loading goes round
	ranks           bool // goes by what a second of loading is worth (worth.go)
}

var policyTraits = [policies]traits{
	Skep:          {loads: true, computes: true, layers: true, exact: true, ranks: true},
	Recompute:     {computes: true},
	LoadOnly:      {loads: true},
	PerRequest:    {loads: true, computes: true, even: true},
	CacheFlow:     {loads: true, computes: true, layers: true},
	ShortestFirst: {loads: true, computes: true, layers: true, exact: true},
	NoLayers:      {loads: true, computes: true, exact: true, ranks: true},
	NoStages:      {loads: true, computes: true, layers: true, exact: true, ranks: true},
	NoBatch:       {loads: true, computes: true, layers: true, exact: true, even: true},
}

// SplitsStages says whether stages restore on their own, from boundary activations.
func (p Policy) SplitsStages() bool { return p != NoStages && p != Recompute && p != PerRequest }
