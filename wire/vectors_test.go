package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/shm"
)

// vector is one frame of wire/testdata: the Go client, the Python client and whoever
// writes another one test against the files. SKEP_UPDATE=1 writes them anew, which
// changes the protocol.
type vector struct {
	name    string
	doc     string
	h       frames.Header
	m       frames.Message
	payload string
	// meaning is what a reader of the frame must find, by the names of docs/reference/protocol.md.
	meaning map[string]any
}

func keyOf(b byte) (k skep.Key) {
	for i := range k {
		k[i] = b + byte(i)
	}
	return k
}

func vectors() []vector {
	k1, k2, parent := keyOf(0x10), keyOf(0x40), keyOf(0x80)
	hexOf := func(k skep.Key) string { return k.String() }
	client := [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	spec := skep.NamespaceSpec{Tenant: "acme", Name: "chat", Model: "llama-3.1-8b@1", Class: skep.Durable, Copies: 1, Chained: true,
		Shape: skep.Shape{Kind: skep.Attention, Layers: 32, KVHeads: 8, HeadDim: 128, Element: skep.BF16, BlockTokens: 16}}
	payload := "sixteen bytes ok" + "tail"
	return []vector{
		{"hello", "A client offers version 1, xxh3 and a token.", frames.Header{Type: frames.TypeHello},
			&frames.Hello{Min: 1, Max: 1, Features: frames.FeatureXXH3, Client: client, Name: "engine-7",
				Token: "0123456789abcdef"}, "",
			map[string]any{"min": 1, "max": 1, "features": 1, "client": hex.EncodeToString(client[:]), "name": "engine-7", "token": "0123456789abcdef"}},
		{"welcome", "The server takes version 1 and says its limits.",
			frames.Header{Type: frames.TypeHello | frames.Answer},
			&frames.Welcome{Version: 1, Features: frames.FeatureXXH3, Server: client, MaxBody: 34 << 20,
				MaxPayload: 16 << 20, MaxKeys: 1 << 20, MaxCalls: 64,
				MaxWindow: 16 << 20, Tenant: "acme", Rights: 3, Name: "skep"}, "",
			map[string]any{"version": 1, "features": 1, "server": hex.EncodeToString(client[:]), "max_body": 34 << 20, "max_payload": 16 << 20,
				"max_keys": 1 << 20, "max_calls": 64, "max_window": 16 << 20, "tenant": "acme", "rights": 3, "name": "skep"}},
		{"welcome-node", "The server is a node of a cluster, and says which.",
			frames.Header{Type: frames.TypeHello | frames.Answer},
			&frames.Welcome{Version: 1, Features: frames.FeatureEpoch | frames.FeatureNode, Server: client,
				MaxBody: 34 << 20, MaxPayload: 16 << 20,
				MaxKeys: 1 << 20, MaxCalls: 64, MaxWindow: 16 << 20, Tenant: "acme", Rights: 3, Name: "skep", Node: "rack1-a"}, "",
			map[string]any{"version": 1, "features": 160, "server": hex.EncodeToString(client[:]), "max_body": 34 << 20,
				"max_payload": 16 << 20, "max_keys": 1 << 20, "max_calls": 64, "max_window": 16 << 20, "tenant": "acme", "rights": 3,
				"name": "skep", "node": "rack1-a"}},
		{"welcome-cluster", "The server is a node of a cluster, and says which node of which.",
			frames.Header{Type: frames.TypeHello | frames.Answer},
			&frames.Welcome{Version: 1, Features: frames.FeatureEpoch | frames.FeatureNode | frames.FeatureCluster,
				Server: client, MaxBody: 34 << 20, MaxPayload: 16 << 20, MaxKeys: 1 << 20, MaxCalls: 64, MaxWindow: 16 << 20,
				Tenant: "acme", Rights: 3, Name: "skep", Node: "rack1-a",
				Cluster: "00112233445566778899aabbccddeeff", NodeID: 7}, "",
			map[string]any{"version": 1, "features": 1184, "server": hex.EncodeToString(client[:]), "max_body": 34 << 20,
				"max_payload": 16 << 20, "max_keys": 1 << 20, "max_calls": 64, "max_window": 16 << 20, "tenant": "acme", "rights": 3,
				"name": "skep", "node": "rack1-a", "cluster": "00112233445566778899aabbccddeeff", "node_id": 7}},
		{"error", "A call with a bad argument: what, its value, what it may be.",
			frames.Header{Type: frames.TypeError, Call: 7},
			&frames.ErrorBody{Kind: skep.Invalid, Op: "lookup", Field: "lease", Value: "-2ns",
				Limit: "0 to 10m0s, or NoLease"}, "",
			map[string]any{"kind": 1, "retry_after": 0, "op": "lookup", "field": "lease", "value": "-2ns", "limit": "0 to 10m0s, or NoLease", "cause": ""}},
		{"error-overloaded", "The call was not begun; come back in 12 ms.",
			frames.Header{Type: frames.TypeError, Call: 8},
			&frames.ErrorBody{Kind: skep.Overloaded, RetryAfter: 12 * time.Millisecond, Op: "server",
				Field: "memory"}, "",
			map[string]any{"kind": 25, "retry_after": 12_000_000, "op": "server", "field": "memory", "value": "", "limit": "", "cause": ""}},
		{"ping", "Are you there? The caller waits 5 s.", frames.Header{Type: frames.TypePing, Call: 9, Deadline: 5000},
			nil, "", map[string]any{}},
		{"open-namespace", "An 8B model's blocks of 16 tokens.", frames.Header{Type: frames.TypeOpenNamespace, Call: 1},
			&frames.NamespaceSpec{NamespaceSpec: spec}, "",
			map[string]any{"tenant": "acme", "name": "chat", "model": "llama-3.1-8b@1", "kind": 1, "element": 1, "order": 0, "layers": 32, "kv_heads": 8,
				"head_dim": 128, "block_tokens": 16, "bytes": 0, "class": 1, "copies": 1, "chained": true}},
		{"open-namespace-answer", "It is number 3.", frames.Header{Type: frames.TypeOpenNamespace | frames.Answer,
			Call: 1},
			&frames.NamespaceInfo{NamespaceInfo: skep.NamespaceInfo{ID: 3,
				Created: time.Unix(0, 1_700_000_000_000_000_001), NamespaceSpec: spec}}, "",
			map[string]any{"id": 3, "created": 1_700_000_000_000_000_001, "tenant": "acme", "name": "chat", "model": "llama-3.1-8b@1", "kind": 1, "element": 1, "order": 0,
				"layers": 32, "kv_heads": 8, "head_dim": 128, "block_tokens": 16, "bytes": 0, "class": 1, "copies": 1, "chained": true}},
		{"lookup", "Two keys under a salt, a lease of 5 s, tiers, and what recomputing costs.",
			frames.Header{Type: frames.TypeLookup, Call: 2, Deadline: 250},
			&frames.LookupRequest{LookupRequest: skep.LookupRequest{Scope: skep.Scope{Namespace: 3, Salt: "user 42"},
				Keys: []skep.Key{k1, k2}, Lease: 5 * time.Second, Tiers: true,
				Cost: &skep.RecomputeCost{Fixed: time.Millisecond, PerToken: 40 * time.Microsecond, PerTokenSquared: 0.5}}}, "",
			map[string]any{"namespace": 3, "salt": "user 42", "lease": 5_000_000_000, "tiers": true, "cost": true, "fixed": 1_000_000, "per_token": 40_000,
				"per_token_squared": 0.5, "keys": []string{hexOf(k1), hexOf(k2)}}},
		{"lookup-answer", "Both are there, one in memory, one on drives, under lease 77.",
			frames.Header{Type: frames.TypeLookup | frames.Answer, Call: 2},
			&frames.LookupResult{Blocks: 2, Tokens: 32, Bytes: 4 << 20,
				Lease: frames.Lease{ID: 77,
					Left: 5 * time.Second}, Pays: true, Estimate: 1500 * time.Microsecond, Tiers: []byte{2, 1}}, "",
			map[string]any{"blocks": 2, "tokens": 32, "bytes": 4 << 20, "lease": 77, "left": 5_000_000_000, "denied": false, "pays": true, "estimate": 1_500_000, "tiers": []int{2, 1}}},
		{"lookup-runs", "Two runs, of two keys and of one, and a lease of 5 s for what is found of both.",
			frames.Header{Type: frames.TypeLookupRuns, Call: 2, Deadline: 250},
			&frames.RunsRequest{RunsRequest: skep.RunsRequest{Scope: skep.Scope{Namespace: 3},
				Runs: [][]skep.Key{{k1, k2}, {parent}}, Lease: 5 * time.Second, Tiers: true}}, "",
			map[string]any{"namespace": 3, "salt": "", "lease": 5_000_000_000, "tiers": true, "cost": false, "runs": [][]string{{hexOf(k1), hexOf(k2)}, {hexOf(parent)}}}},
		{"lookup-runs-answer", "One block of the first run, in memory, and none of the second, under lease 77.",
			frames.Header{Type: frames.TypeLookupRuns | frames.Answer, Call: 2},
			&frames.RunsResult{Runs: []skep.RunFound{{Blocks: 1, Tokens: 16, Bytes: 2 << 20, Pays: true}, {Pays: true}},
				Lease: frames.Lease{ID: 77, Left: 5 * time.Second}, Tiers: []byte{2}}, "",
			map[string]any{"runs": [][]any{{1, 16, 2 << 20, 0, true}, {0, 0, 0, 0, true}}, "lease": 77, "left": 5_000_000_000, "denied": false, "tiers": []int{2}}},
		{"renew", "Lease 77 for a minute from now.", frames.Header{Type: frames.TypeRenew, Call: 3},
			&frames.Lease{ID: 77, Left: time.Minute}, "", map[string]any{"lease": 77, "left": 60_000_000_000}},
		{"release", "Lease 77 is not needed any more.", frames.Header{Type: frames.TypeRelease, Call: 4},
			&frames.Number{N: 77}, "", map[string]any{"number": 77}},
		{"want", "Would a put of these two blocks, 4 MiB together, store them?",
			frames.Header{Type: frames.TypeWant, Call: 5},
			&frames.WantRequest{WantRequest: skep.WantRequest{Scope: skep.Scope{Namespace: 3}, Keys: []skep.Key{k1, k2},
				Bytes: 4 << 20}}, "",
			map[string]any{"namespace": 3, "salt": "", "bytes": 4 << 20, "keys": []string{hexOf(k1), hexOf(k2)}}},
		{"want-answer", "The first exists; the second is wanted.", frames.Header{Type: frames.TypeWant | frames.Answer,
			Call: 5},
			&frames.WantResult{List: []skep.Want{{Outcome: skep.Exists}, {Wanted: true}}}, "",
			map[string]any{"wants": [][]int{{0, 3, 0}, {1, 0, 0}}}},
		{"put", "One block of two parts behind a parent; xxh3-64 of each part.",
			frames.Header{Type: frames.TypePut, Call: 6},
			&frames.PutRequest{Scope: skep.Scope{Namespace: 3}, Parent: &parent, Depth: 4, Ack: skep.AckAccepted,
				Blocks: []frames.PutBlock{{Key: k1, Valid: 7, Name: []byte("block-1"), Parts: []frames.PutPart{
					{Name: "kv", Size: 16, Sum: frames.SumXXH3, Check: xxh3.HashString(payload[:16])}, {Name: "state",
						Size: 4, Sum: frames.SumXXH3, Check: xxh3.HashString(payload[16:])}}}}}, payload,
			map[string]any{"namespace": 3, "salt": "", "parent": hexOf(parent), "depth": 4, "ack": 1, "key": hexOf(k1), "valid": 7, "replaces": nil, "name": "block-1",
				"parts": []any{[]any{"kv", 16, 2, fmt.Sprintf("%016x", xxh3.HashString(payload[:16])), false, 0}, []any{"state", 4, 2, fmt.Sprintf("%016x", xxh3.HashString(payload[16:])), false, 0}}}},
		{"put-each", "Two blocks that each begin a chain; xxh3-64 of each.",
			frames.Header{Type: frames.TypePutEach, Call: 6},
			&frames.PutRequest{Scope: skep.Scope{Namespace: 3}, Blocks: []frames.PutBlock{
				{Key: k1, Parts: []frames.PutPart{{Name: "kv", Size: 16, Sum: frames.SumXXH3, Check: xxh3.HashString(payload[:16])}}},
				{Key: k2, Parts: []frames.PutPart{{Name: "kv", Size: 4, Sum: frames.SumXXH3, Check: xxh3.HashString(payload[16:])}}}}}, payload,
			map[string]any{"namespace": 3, "salt": "", "ack": 0, "keys": []string{hexOf(k1), hexOf(k2)}, "sizes": []int{16, 4}}},
		{"put-answer", "Accepted; then one that exists with other bytes; then one declined as full.",
			frames.Header{Type: frames.TypePut | frames.Answer, Call: 6},
			&frames.PutResults{List: []skep.PutResult{{Outcome: skep.Accepted}, {Outcome: skep.Exists, Differs: true},
				{Reason: skep.Full}}}, "",
			map[string]any{"results": [][]int{{2, 0, 0}, {3, 1, 0}, {0, 0, 4}}}},
		{"begin", "A chain's first block, written part by part, for at most a minute.",
			frames.Header{Type: frames.TypeBegin, Call: 10},
			&frames.BeginRequest{BeginRequest: skep.BeginRequest{Scope: skep.Scope{Namespace: 3}, Key: k1,
				Manifest: skep.Manifest{{Name: "kv", Size: 2 << 20}, {Name: "state",
					Size: 999}}, Timeout: time.Minute}}, "",
			map[string]any{"namespace": 3, "salt": "", "parent": nil, "depth": 0, "key": hexOf(k1), "name": "", "valid": 0, "replaces": nil, "timeout": 60_000_000_000,
				"parts": []any{[]any{"kv", 2 << 20}, []any{"state", 999}}}},
		{"write", "Four bytes at 100 of part state of writer 1, with their CRC-32.",
			frames.Header{Type: frames.TypeWrite, Call: 11},
			&frames.WriteRequest{Writer: 1, Part: "state", Offset: 100, Sum: frames.SumCRC32,
				Check: link.SumOver(frames.SumCRC32, []byte("tail"))}, "tail",
			map[string]any{"writer": 1, "part": "state", "offset": 100, "sum": 1,
				"check": fmt.Sprintf("%016x", link.SumOver(frames.SumCRC32, []byte("tail")))}},
		{"commit", "Writer 1, answered when it is stored.", frames.Header{Type: frames.TypeCommit, Call: 12},
			&frames.CommitRequest{Writer: 1}, "", map[string]any{"writer": 1, "ack": 0}},
		{"restore", "Tail first, layers 0 to 7, heads 0 to 3, within 2 s, under lease 77; 8 MiB ahead.",
			frames.Header{Type: frames.TypeRestore, Call: 20},
			&frames.RestoreRequest{Window: 8 << 20, Chains: []frames.RestoreChain{{Scope: skep.Scope{Namespace: 3},
				Part: "kv", Direction: skep.TailFirst, Lease: 77, Priority: -1,
				Deadline: 2 * time.Second, Blocks: skep.Range{From: 0, To: 2}, Layers: skep.Range{From: 0, To: 8}, Heads: skep.Range{From: 0, To: 4}, Keys: []skep.Key{k1, k2}}}}, "",
			map[string]any{"window": 8 << 20, "ring": false, "namespace": 3, "salt": "", "part": "kv", "direction": 1, "lease": 77, "priority": -1, "deadline": 2_000_000_000,
				"blocks": []int{0, 2}, "layers": []int{0, 8}, "heads": []int{0, 4}, "to": 0, "keys": []string{hexOf(k1), hexOf(k2)}}},
		{"restore-shared", "Two blocks into shared memory at 1 MiB, 64 KiB apart; the ring answers.",
			frames.Header{Type: frames.TypeRestore, Call: 21},
			&frames.RestoreRequest{Window: 1 << 20, Ring: true,
				Chains: []frames.RestoreChain{{Scope: skep.Scope{Namespace: 3}, To: frames.ToMemory,
					Memory: frames.Area{Offset: 1 << 20, Len: 1 << 17}, Stride: 1 << 16, Keys: []skep.Key{k1, k2}}}}, "",
			map[string]any{"window": 1 << 20, "ring": true, "namespace": 3, "salt": "", "part": "", "direction": 0, "lease": 0, "priority": 0, "deadline": 0,
				"blocks": []int{0, 0}, "layers": []int{0, 0}, "heads": []int{0, 0}, "to": 1, "offset": 1 << 20, "length": 1 << 17, "stride": 1 << 16, "keys": []string{hexOf(k1), hexOf(k2)}}},
		{"costed-restore", "A chain that is computed from its head: 40 µs a token, half a nanosecond a token squared, 32 tokens after it.", frames.Header{Type: frames.TypeCostedRestore, Call: 22},
			&frames.CostedRestoreRequest{Compute: []frames.ChainCompute{{Chain: 0,
				Compute: skep.Compute{Cost: skep.RecomputeCost{Fixed: time.Millisecond, PerToken: 40 * time.Microsecond,
					PerTokenSquared: 0.5},
					Suffix: 32, Weight: 2, Background: true}}}, RestoreRequest: frames.RestoreRequest{Window: 8 << 20, Chains: []frames.RestoreChain{{Scope: skep.Scope{Namespace: 3}, Direction: skep.TailFirst, Keys: []skep.Key{k1}}}}}, "",
			map[string]any{"costs": []any{map[string]any{"chain": 0, "fixed": 1_000_000, "per_token": 40_000, "per_token_squared": 0.5, "suffix": 32, "weight": 2, "load_only": false,
				"background": true, "boundary": nil}}, "window": 8 << 20, "ring": false, "namespace": 3, "salt": "", "part": "", "direction": 1, "lease": 0, "priority": 0, "deadline": 0,
				"blocks": []int{0, 0}, "layers": []int{0, 0}, "heads": []int{0, 0}, "to": 0, "keys": []string{hexOf(k1)}}},
		{"costed-restore-either", "A chain that the server restores either way, by tokens or by layers.",
			frames.Header{Type: frames.TypeCostedRestore, Call: 26},
			&frames.CostedRestoreRequest{Compute: []frames.ChainCompute{{Chain: 0,
				Compute: skep.Compute{Cost: skep.RecomputeCost{PerToken: 40 * time.Microsecond}}}},
				RestoreRequest: frames.RestoreRequest{Window: 8 << 20,
					Chains: []frames.RestoreChain{{Scope: skep.Scope{Namespace: 3}, Direction: skep.Auto,
						Keys: []skep.Key{k1}}}}}, "",
			map[string]any{"costs": []any{map[string]any{"chain": 0, "fixed": 0, "per_token": 40_000, "per_token_squared": 0.0, "suffix": 0, "weight": 0.0, "load_only": false,
				"background": false, "boundary": nil}}, "window": 8 << 20, "ring": false, "namespace": 3, "salt": "", "part": "", "direction": 4, "lease": 0, "priority": 0, "deadline": 0,
				"blocks": []int{0, 0}, "layers": []int{0, 0}, "heads": []int{0, 0}, "to": 0, "keys": []string{hexOf(k1)}}},
		{"direction", "Which way does chain 0 of session 26 go?", frames.Header{Type: frames.TypeDirection, Call: 27},
			&frames.DirectionRequest{Session: 26}, "",
			map[string]any{"session": 26, "chain": 0}},
		{"direction-answer", "Layers down.", frames.Header{Type: frames.TypeDirection | frames.Answer, Call: 27},
			&frames.DirectionResult{Direction: skep.LayersDown}, "",
			map[string]any{"direction": 3}},
		{"claim-when", "An engine with other work asks for tokens 0 to 15 of chain 0.",
			frames.Header{Type: frames.TypeClaimWhen, Call: 23},
			&frames.ClaimWhenRequest{ClaimRequest: frames.ClaimRequest{Session: 22, Chain: 0,
				Range: skep.Range{From: 0, To: 16}}, Idle: false}, "",
			map[string]any{"session": 22, "chain": 0, "range": []int{0, 16}, "idle": false}},
		{"computed", "They took 640 µs in a step that took 100 µs for other work besides.",
			frames.Header{Type: frames.TypeComputed, Call: 24},
			&frames.ComputedRequest{ClaimRequest: frames.ClaimRequest{Session: 22, Chain: 0,
				Range: skep.Range{From: 0, To: 16}}, Took: 740 * time.Microsecond, Other: 100 * time.Microsecond}, "",
			map[string]any{"session": 22, "chain": 0, "range": []int{0, 16}, "took": 740_000, "other": 100_000}},
		{"restore-answer", "The session is begun. Its number is the call's.",
			frames.Header{Type: frames.TypeRestore | frames.Answer, Call: 20}, nil, "", map[string]any{}},
		{"chunks", "Block 1 whole, from drives, with the store's checksum and its seed; block 0 evicted.",
			frames.Header{Type: frames.TypeChunks, Call: 20},
			&frames.Chunks{List: []frames.Piece{{Chain: 0, Block: 1, Layers: [2]uint32{0, 8}, Tier: skep.TierDevice,
				Bytes: 16, Len: 16, Sums: []frames.Sum{{Kind: frames.SumXXH3, Len: 16, Seed: 0x0123456789abcdef,
					Check: xxh3.HashStringSeed(payload[:16],
						0x0123456789abcdef)}}}, {Chain: 0, Block: 0, Layers: [2]uint32{0, 8}, What: frames.PieceMiss, Err: frames.ErrorBody{Kind: skep.Evicted, Op: "restore"}}}}, payload[:16],
			map[string]any{"pieces": []any{
				map[string]any{"chain": 0, "block": 1, "layers": []int{0, 8}, "tier": 1, "what": 0, "bytes": 16, "offset": 0, "len": 16,
					"sums": []any{[]any{2, 16, "0123456789abcdef", fmt.Sprintf("%016x", xxh3.HashStringSeed(payload[:16], 0x0123456789abcdef))}}},
				map[string]any{"chain": 0, "block": 0, "layers": []int{0, 8}, "tier": 0, "what": 1, "error": map[string]any{"kind": 21, "retry_after": 0, "op": "restore", "field": "", "value": "", "limit": "", "cause": ""}}}}},
		{"chunks-last", "Every chunk was delivered.", frames.Header{Type: frames.TypeChunks, Flags: frames.FlagLast,
			Call: 20}, &frames.Chunks{}, "", map[string]any{"pieces": []any{}}},
		{"credit", "Session 20 may send 2 MiB more.", frames.Header{Type: frames.TypeCredit},
			&frames.Credit{Session: 20, Amount: 2 << 20}, "", map[string]any{"session": 20, "amount": 2 << 20}},
		{"claim", "The client is about to compute tokens 0 to 15 of chain 0.",
			frames.Header{Type: frames.TypeClaim, Call: 22}, &frames.ClaimRequest{Session: 20, Chain: 0,
				Range: skep.Range{From: 0, To: 16}}, "",
			map[string]any{"session": 20, "chain": 0, "range": []int{0, 16}}},
		{"claim-answer", "All of it is yours; go on at 16.", frames.Header{Type: frames.TypeClaim | frames.Answer,
			Call: 22}, &frames.ClaimResult{Claim: skep.Claim{Granted: skep.Range{From: 0, To: 16}, Next: 16}}, "",
			map[string]any{"granted": []int{0, 16}, "jump": 16}},
		{"reprioritise", "Chain 0 first, within a second.", frames.Header{Type: frames.TypeReprioritise, Call: 23},
			&frames.ReprioritiseRequest{Session: 20, Chain: 0, Priority: 9, Deadline: time.Second}, "",
			map[string]any{"session": 20, "chain": 0, "priority": 9, "deadline": 1_000_000_000}},
		{"stop", "All chains of session 20.", frames.Header{Type: frames.TypeStop, Call: 24},
			&frames.StopRequest{Session: 20, Chain: -1}, "", map[string]any{"session": 20, "chain": -1}},
		{"end", "Session 20 is over.", frames.Header{Type: frames.TypeEnd, Call: 25}, &frames.Number{N: 20}, "",
			map[string]any{"number": 20}},
		{"hint", "Two blocks: kept an hour at least, used again in a minute, by program agent.",
			frames.Header{Type: frames.TypeHint, Call: 30},
			&frames.HintRequest{Scope: skep.Scope{Namespace: 3}, Hint: skep.Hint{Pin: time.Hour, NextUse: time.Minute,
				Steps: 2, Program: "agent"}, Keys: []skep.Key{k1, k2}}, "",
			map[string]any{"namespace": 3, "salt": "", "pin": 3_600_000_000_000, "next_use": 60_000_000_000, "steps": 2, "ttl": 0, "program": "agent", "drop": false, "keys": []string{hexOf(k1), hexOf(k2)}}},
		{"delete", "One block.", frames.Header{Type: frames.TypeDelete, Call: 31},
			&frames.DeleteRequest{Scope: skep.Scope{Namespace: 3}, Keys: []skep.Key{k2}}, "",
			map[string]any{"namespace": 3, "salt": "", "keys": []string{hexOf(k2)}}},
		{"delete-answer", "It was there.", frames.Header{Type: frames.TypeDelete | frames.Answer, Call: 31},
			&frames.Number{N: 1}, "", map[string]any{"number": 1}},
		{"purge", "Everything of one salt.", frames.Header{Type: frames.TypePurge, Call: 32},
			&frames.PurgeRequest{Purge: skep.Purge{Salt: &skep.Scope{Namespace: 3, Salt: "user 42"}}}, "",
			map[string]any{"tenant": "", "model": "", "namespace": 0, "salted": true, "scope_namespace": 3, "scope_salt": "user 42"}},
		{"events", "From event 1000 of epoch 5, 4,096 at most before the first credit.",
			frames.Header{Type: frames.TypeEvents, Call: 40},
			&frames.EventsRequest{Cursor: skep.Cursor{Epoch: 5, Seq: 1000},
				Credit: 4096}, "", map[string]any{"epoch": 5, "seq": 1000, "snapshot": false, "credit": 4096}},
		{"event-batch", "A commit behind a parent.", frames.Header{Type: frames.TypeEventBatch, Call: 40},
			&frames.EventBatch{List: []skep.Event{{Cursor: skep.Cursor{Epoch: 5, Seq: 1000}, Kind: skep.EventCommitted,
				Tier: skep.TierDevice, Time: time.Unix(0, 1_700_000_000_000_000_001),
				Namespace: 3, Depth: 5, Key: k1, Parent: &parent}}}, "",
			map[string]any{"events": []any{map[string]any{"epoch": 5, "seq": 1000, "kind": 2, "salted": false, "tier": 1, "reason": 0, "time": 1_700_000_000_000_000_001,
				"namespace": 3, "depth": 5, "lost": 0, "key": hexOf(k1), "parent": hexOf(parent)}}}},
		{"list", "How many blocks namespace 3 holds, and the first keys of it, at most 64.",
			frames.Header{Type: frames.TypeList, Call: 33}, &frames.ListRequest{Namespace: 3, N: 64}, "",
			map[string]any{"namespace": 3, "from": 0, "n": 64}},
		{"list-answer", "Two blocks; their keys are all.", frames.Header{Type: frames.TypeList | frames.Answer,
			Call: 33}, &frames.ListResult{Blocks: 2, Keys: []skep.Key{k1, k2}}, "",
			map[string]any{"blocks": 2, "next": 0, "keys": []string{hexOf(k1), hexOf(k2)}}},
		{"admin", "A call with JSON.", frames.Header{Type: frames.TypeAdmin, Call: 50},
			&frames.AdminRequest{Name: "scrub", JSON: []byte(`{"rate":1000000}`)}, "",
			map[string]any{"name": "scrub", "json": `{"rate":1000000}`}},
		{"attach", "16 MiB with a ring of 4,096 entries at its start; two descriptors come with it.",
			frames.Header{Type: frames.TypeAttach, Call: 60},
			&frames.AttachRequest{Size: 16 << 20, Entries: 4096}, "", map[string]any{"size": 16 << 20, "ring": 0,
				"entries": 4096}},
		{"attach-memory", "A file's bytes 1 MiB to 17 MiB as memory 3; one descriptor comes with it.",
			frames.Header{Type: frames.TypeAttachMemory, Call: 61},
			&frames.AttachMemoryRequest{Memory: 3, Offset: 1 << 20, Size: 16 << 20}, "", map[string]any{"memory": 3,
				"offset": 1 << 20, "size": 16 << 20}},
		{"goodbye", "The server closes the connection in ten seconds.", frames.Header{Type: frames.TypeGoodbye},
			&frames.Goodbye{After: 10 * time.Second, Reason: "shutting down"}, "",
			map[string]any{"after": 10_000_000_000, "reason": "shutting down"}},
	}
}

func (v *vector) frame(t *testing.T) []byte {
	v.h.Payload = uint32(len(v.payload))
	b, err := frames.AppendFrame(nil, v.h, v.m)
	require.NoError(t, err)
	return append(b, v.payload...)
}

// file is a vector as it is written: what it is, what it means, its bytes.
func vectorFile(doc string, meaning any, b []byte) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "# %s\n", doc)
	m, _ := json.Marshal(meaning)
	fmt.Fprintf(&out, "# = %s\n", m)
	for len(b) > 0 {
		n := min(len(b), 16)
		fmt.Fprintf(&out, "% x\n", b[:n])
		b = b[n:]
	}
	return out.Bytes()
}

func readVector(t *testing.T, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name+".hex"))
	require.NoError(t, err, "SKEP_UPDATE=1 go test -run Vectors ./wire writes it")
	var text strings.Builder
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "#") {
			text.WriteString(strings.Join(strings.Fields(line), ""))
		}
	}
	b, err := hex.DecodeString(text.String())
	require.NoError(t, err)
	return b
}

func checkVector(t *testing.T, name, doc string, meaning any, b []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".hex")
	if os.Getenv("SKEP_UPDATE") != "" {
		require.NoError(t, os.WriteFile(path, vectorFile(doc, meaning, b), 0o644))
	}
	require.Equal(t, readVector(t, name), b, "the protocol has changed")
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(vectorFile(doc, meaning, b)), string(raw))
}

func TestVectors(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{"ring-entry.hex": true, "xxh3.json": true}
	for _, v := range vectors() {
		t.Run(v.name, func(t *testing.T) {
			b := v.frame(t)
			meaning := map[string]any{"type": uint8(v.h.Type), "call": v.h.Call, "flags": v.h.Flags, "deadline": v.h.Deadline, "payload": hex.EncodeToString([]byte(v.payload)), "body": v.meaning}
			checkVector(t, v.name, v.doc, meaning, b)
			h, err := frames.ParseHeader(b)
			require.NoError(t, err)
			require.Equal(t, v.h.Type, h.Type)
			body := b[frames.HeaderSize : frames.HeaderSize+h.Body]
			require.Equal(t, h.BodySum, uint32(link.SumOver(frames.SumCRC32, body)))
			if v.m == nil {
				require.Empty(t, body)
				return
			}
			got := reflect.New(reflect.TypeOf(v.m).Elem()).Interface().(frames.Message)
			require.NoError(t, frames.Decode(h.Type, body, got))
			require.Equal(t, v.m, got, "read back")
		})
		seen[v.name+".hex"] = true
	}
	files, err := os.ReadDir("testdata")
	require.NoError(t, err)
	for _, f := range files {
		if f.Type().IsRegular() {
			require.True(t, seen[f.Name()], "testdata/%s belongs to no vector", f.Name())
		}
	}
}

func TestVectorOfARingEntry(t *testing.T) {
	t.Parallel()
	e := shm.Entry{Session: 20, Chain: 1, Block: 2, Layers: [2]uint32{0, 32}, Bytes: 2 << 20, Tier: skep.TierDevice}
	mem := make([]byte, 2*shm.EntrySize)
	shm.NewWriter(mem).Put(&e)
	checkVector(t, "ring-entry", "The first entry of a ring: block 2 of chain 1 of session 20 has landed.", map[string]any{"sequence": 1, "session": 20, "chain": 1, "block": 2,
		"layers": []int{0, 32}, "bytes": 2 << 20, "kind": 0, "what": 0, "tier": 1}, mem[:shm.EntrySize])
	got, ok, err := shm.NewReader(mem).Next()
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, e, got)
}

// The checksum itself, over lengths at which it changes its ways: byte i of the input
// is i·131 mod 251.
func TestVectorsOfXXH3(t *testing.T) {
	t.Parallel()
	type row struct {
		Len  int    `json:"len"`
		Seed string `json:"seed"`
		Sum  string `json:"sum"`
	}
	var rows []row
	for _, n := range []int{0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 96, 97, 128, 129, 160, 200, 240, 241, 256, 512, 1023, 1024, 1025, 2048, 4096, 5000} {
		in := make([]byte, n)
		for i := range in {
			in[i] = byte(i * 131 % 251)
		}
		for _, seed := range []uint64{0, 1, 0x9e3779b97f4a7c15} {
			rows = append(rows, row{n, fmt.Sprintf("%016x", seed), fmt.Sprintf("%016x", xxh3.HashSeed(in, seed))})
		}
	}
	want, err := json.MarshalIndent(rows, "", " ")
	require.NoError(t, err)
	path := filepath.Join("testdata", "xxh3.json")
	if os.Getenv("SKEP_UPDATE") != "" {
		require.NoError(t, os.WriteFile(path, append(want, '\n'), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(got))
}

// What list demands of each element at least is what the smallest one takes.
func TestLeastLengthsOfListElements(t *testing.T) {
	t.Parallel()
	size := func(m frames.Message) int {
		c := frames.Coder{}
		m.Walk(&c)
		return len(c.Body)
	}
	one := size(&frames.RestoreRequest{Chains: []frames.RestoreChain{{}}}) - size(&frames.RestoreRequest{})
	require.Equal(t, 86, one)
	require.Equal(t, 78, size(&frames.EventBatch{List: []skep.Event{{}}})-4)
	require.Equal(t, 49, size(&frames.PutRequest{Blocks: []frames.PutBlock{{}}})-size(&frames.PutRequest{}))
	require.Equal(t, 28, size(&frames.PutPart{}))
	require.Equal(t, 47, size(&frames.ChainCompute{}))
	require.Equal(t, 71, size(&frames.NamespaceInfo{}))
	require.Equal(t, 26, size(&frames.Piece{What: frames.PieceLanded}))
	require.Equal(t, 25, size(&frames.Sum{}))
	require.Equal(t, frames.LeastRun,
		size(&frames.RunsRequest{RunsRequest: skep.RunsRequest{Runs: [][]skep.Key{{{}}}}})-size(&frames.RunsRequest{}))
	require.Equal(t, frames.RunFoundBytes,
		size(&frames.RunsResult{Runs: []skep.RunFound{{}}})-size(&frames.RunsResult{}))
}
