package cli

import (
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/clusterdemo"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/demo"
	"github.com/skepkv/skep/tools/internal/doctor"
	"github.com/skepkv/skep/tools/internal/inspect"
	"github.com/skepkv/skep/tools/internal/remote"
	"github.com/skepkv/skep/tools/internal/replay"
	"github.com/skepkv/skep/tools/internal/servecmd"
)

// Results are what commands print with --json, by command. docs/reference/schema has a JSON Schema of each, which
// tools/docs makes from the types and their comments.
var Results = map[string]any{
	"error":                   command.Failure{},
	"skep gpu status":         gpuStatusResult{},
	"skep recluster":          reclusterResult{},
	"skep inspect clusters":   clustersResult{},
	"skep inspect devices":    inspect.Devices{},
	"skep inspect groups":     inspect.Groups{},
	"skep inspect namespaces": inspect.Namespaces{},
	"skep inspect keys":       inspect.Keys{},
	"skep inspect block":      inspect.Blocks{},
	"skep inspect chain":      inspect.Chain{},
	"skep inspect side":       inspect.Sides{},
	"skep inspect memory":     memoryResult{},
	"skep verify":             store.VerifyReport{},
	"skep rebuild":            store.RebuildReport{},
	"skep scrub":              store.ScrubReport{},
	"skep inspect mrc":        mrcResult{},
	"skep top":                topResult{},
	"skep support":            supportResult{},
	"skep compact":            store.CompactResult{},
	"skep device list":        inspect.Devices{},
	"skep device add":         deviceResult{},
	"skep device drain":       deviceResult{},
	"skep device remove":      deviceResult{},
	"skep device replace":     deviceResult{},
	"skep namespace delete":   store.NamespaceDeletion{},
	"skep doctor":             doctor.Report{},
	"skep doctor keys":        remote.KeysResult{},
	"skep size":               sizeResult{},
	"skep demo":               demo.Result{},
	"skep cluster demo":       clusterdemo.Result{},
	"skep cluster init":       remote.NodeResult{},
	"skep cluster add":        remote.NodeResult{},
	"skep cluster remove":     remote.RemovedResult{},
	"skep cluster set":        remote.SetResult{},
	"skep cluster recover":    remote.RecoverResult{},
	"skep cluster repair":     remote.RepairResult{},
	"skep cluster status":     consensus.Status{},
	"skep replay":             replay.Result{},
	"skep serve":              servecmd.Result{},
	"skep config check":       servecmd.Checked{},
	"skep version":            command.VersionResult{},
	"skep put":                remote.ValueResult{},
	"skep get":                remote.ValueResult{},
	"skep del":                remote.DelResult{},
	"skep ls":                 remote.ListResult{},
	"skep ns list":            remote.SpacesResult{},
	"skep ns show":            remote.SpaceRow{},
	"skep ns delete":          remote.RemovalResult{},
	"skep purge":              remote.RemovalResult{},
	"skep status":             remote.StatusResult{},
	"skep ready":              remote.ReadyResult{},
}
