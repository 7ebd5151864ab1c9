package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/wire/httpapi"
)

// StatusResult is what status prints.
type StatusResult struct {
	Server        string        `json:"server"`         // as it was named
	State         string        `json:"state"`          // of the store: ok, read-only, or failed and why
	Blocks        int64         `json:"blocks"`         // stored (blocks)
	BlockBytes    int64         `json:"block_bytes"`    // payload of them, one copy each (bytes)
	DeviceBytes   int64         `json:"device_bytes"`   // size of the drives, as far as they are allotted (bytes)
	CapacityBytes int64         `json:"capacity_bytes"` // the cap that was set on it; 0: none (bytes)
	RoomBytes     int64         `json:"room_bytes"`     // payload there is room for, all copies counted; 0: unknown (bytes)
	Fits          []Fit         `json:"fits"`           // the same in blocks, by the copies that namespaces have
	FreeGroups    int           `json:"free_groups"`    // stripe groups that are free
	Groups        int           `json:"groups"`         // stripe groups in use
	Lookups       int64         `json:"lookups"`        // since the store was opened
	HitRatio      float64       `json:"hit_ratio"`      // keys found ÷ keys looked up, since then
	Devices       []DeviceRow   `json:"devices"`        // drives of the store
	ToName        []string      `json:"to_name"`        // to be named in the settings, where these name others; else none
	Unhealthy     []string      `json:"unhealthy"`      // drives fenced or dead, nodes that do not answer, in words
	Jobs          []httpapi.Job `json:"jobs"`           // background work
}

// Fit is what a store has room for in blocks of namespaces with so many copies.
type Fit struct {
	Copies int   `json:"copies"` // of each block
	Bytes  int64 `json:"bytes"`  // payload of blocks, one copy each (bytes)
}

// DeviceRow is one drive in brief.
type DeviceRow struct {
	Index int    `json:"index"` // its number
	Path  string `json:"path"`  // where it is
	State string `json:"state"` // in use, fenced, dead, …, and why
	Bytes int64  `json:"bytes"` // its size (bytes)
}

const ready = "ready"

func statusCommand(a *command.App) *cobra.Command {
	var wait string
	timeout := time.Minute
	cmd := &cobra.Command{
		Use: "status", Short: "say how a running server is: state, space, hit ratio, drives, jobs",
		Long: `Asks a running server how it stands. Exit code 6: the store is not well, a drive is fenced or dead, a node
of its cluster does not answer, or a job failed. It takes a credential that reaches every tenant and has the right
admin. --wait ready waits until the server answers and its store is well; exit code 4: it was not within --timeout.`,
		Args: command.NoArgs,
	}
	cmd.Flags().StringVar(&wait, "wait", "", "wait for this: ready")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long --wait waits")
	cmd = newCommand(a, cmd, func(ctx context.Context, r *remote, _ []string) error {
		s, err := r.status(ctx)
		if err != nil {
			return err
		}
		if !s.well() {
			r.Code = command.Faults
		}
		return r.Print(s, func(w io.Writer) { statusText(w, s) })
	})
	once := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case wait != "" && wait != ready:
			return skep.Invalidf("status", "--wait", wait, ready)
		case timeout <= 0:
			return skep.Invalidf("status", "--timeout", timeout, "more than 0")
		case wait == "":
			return once(cmd, args)
		}
		r := &remote{App: a, target: targetOf(cmd)}
		if err := untilReady(cmd.Context(), timeout, r.isReady); err != nil {
			return err
		}
		return once(cmd, args)
	}
	return cmd
}

// targetOf is the server that a command's flags name.
func targetOf(cmd *cobra.Command) Target {
	get := func(name string) string { return cmd.Flags().Lookup(name).Value.String() }
	return Target{Server: get("server"), TokenFile: get("token-file"), CA: get("ca")}
}

// isReady asks a server once. An error is of what waiting does not change.
func (r *remote) isReady(ctx context.Context) (bool, error) {
	target := r.target
	target.Err = nil // it is asked again and again
	c, err := target.Dial(ctx, "skep status")
	if err != nil {
		return false, err
	}
	defer c.Close()
	st, err := c.Stats(ctx)
	return err == nil && st.State == "ok", target.Explain(err)
}

// again is how long status waits before it asks once more.
const again = 200 * time.Millisecond

// untilReady asks until it is answered yes, or with an error that no waiting changes.
func untilReady(ctx context.Context, timeout time.Duration, ask func(context.Context) (bool, error)) error {
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		well, err := ask(within)
		switch {
		case well:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && within.Err() == nil && command.CodeOf(err) != command.TryAgain:
			return err
		}
		select {
		case <-within.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return command.WithNext(&skep.Error{Op: "status", Kind: skep.Deadline, Field: "--wait ready", Value: "not so", Limit: "so within " + timeout.String(), Err: err},
				"see the server's log, and skep status; --timeout waits longer")
		case <-time.After(again):
		}
	}
}

func (r *remote) status(ctx context.Context) (*StatusResult, error) {
	st, err := r.c.Stats(ctx)
	if err != nil {
		return nil, err
	}
	s := statusOf(r.target.String(), &st)
	spaces, err := r.c.Namespaces(ctx)
	if err != nil && skep.KindOf(err) != skep.Denied { // who may not read is not told of them
		return nil, err
	}
	s.fit(spaces)
	b, err := r.c.Admin(ctx, "jobs", json.RawMessage("{}"))
	if skep.KindOf(err) == skep.Unsupported { // a server that is no skep serve's
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &s.Jobs)
	}
	if err != nil {
		return nil, err
	}
	return s, r.silentNodes(ctx, s)
}

// silentNodes adds which nodes of the cluster the server does not reach, where it is one that agrees on the map.
func (r *remote) silentNodes(ctx context.Context, s *StatusResult) error {
	b, err := r.c.Admin(ctx, "cluster", json.RawMessage("{}"))
	if skep.KindOf(err) == skep.Unsupported {
		return nil
	}
	var st consensus.Status
	if err == nil {
		err = json.Unmarshal(b, &st)
	}
	for _, n := range st.Nodes {
		if !n.Reached && n.State != "removed" {
			s.Unhealthy = append(s.Unhealthy, fmt.Sprintf("node %s does not answer at %s", n.Name, n.Peer))
		}
	}
	return err
}

func statusOf(server string, st *skep.Stats) *StatusResult {
	s := &StatusResult{Server: server, State: st.State, Blocks: st.Blocks, BlockBytes: st.BlockBytes, DeviceBytes: st.DeviceBytes,
		CapacityBytes: st.CapacityBytes, RoomBytes: st.RoomBytes, Fits: []Fit{}, FreeGroups: st.FreeGroups, Groups: st.Groups, Lookups: st.Lookups,
		Devices: []DeviceRow{}, ToName: append([]string{}, st.ToName...), Unhealthy: []string{}, Jobs: []httpapi.Job{}}
	if st.LookupKeys > 0 {
		s.HitRatio = float64(st.LookupHits) / float64(st.LookupKeys)
	}
	for _, d := range st.Devices {
		s.Devices = append(s.Devices, DeviceRow{d.Index, d.Path, d.State, d.Size})
		if state, _, _ := strings.Cut(d.State, ":"); state == "fenced" || state == "dead" {
			s.Unhealthy = append(s.Unhealthy, fmt.Sprintf("device %d (%s): %s", d.Index, d.Path, d.State))
		}
	}
	return s
}

// fit reckons what there is room for with the copies that namespaces have.
func (s *StatusResult) fit(spaces []skep.NamespaceInfo) {
	used := map[int]bool{}
	for _, n := range spaces {
		used[max(1, n.Copies)] = true
	}
	for _, c := range slices.Sorted(maps.Keys(used)) {
		if s.RoomBytes > 0 {
			s.Fits = append(s.Fits, Fit{c, s.RoomBytes / int64(c)})
		}
	}
}

func (s *StatusResult) well() bool {
	for _, j := range s.Jobs {
		if j.State == "failed" {
			return false
		}
	}
	return s.State == "ok" && len(s.Unhealthy) == 0
}

func statusText(w io.Writer, s *StatusResult) {
	limit, free := "no cap", "" // without a cap files grow, and nobody knows how many groups there will be
	if s.CapacityBytes > 0 {
		limit, free = "cap "+command.Size(s.CapacityBytes), fmt.Sprintf(", %d free", s.FreeGroups)
	}
	hits := "nothing was looked up yet"
	if s.Lookups > 0 {
		hits = fmt.Sprintf("%.4f of keys in %d lookups", s.HitRatio, s.Lookups)
	}
	state := s.State
	if state == "ok" && !s.well() {
		state = "serves, and is not well"
	}
	rows := [][]string{command.Row("server", s.Server), command.Row("state", state),
		command.Row("blocks", fmt.Sprintf("%d, %s", s.Blocks, command.Size(s.BlockBytes))),
		command.Row("space", fmt.Sprintf("%s of drives, %s, %d groups in use%s", command.Size(s.DeviceBytes), limit, s.Groups, free)),
		command.Row("hit ratio", hits)}
	if s.RoomBytes > 0 {
		room := command.Size(s.RoomBytes) + " of payload at most, every copy counted"
		for _, f := range s.Fits {
			if f.Copies > 1 {
				room += fmt.Sprintf("; %s of blocks with %d copies", command.Size(f.Bytes), f.Copies)
			}
		}
		rows = slices.Insert(rows, 4, command.Row("room", room))
	}
	if !slices.ContainsFunc(s.Unhealthy, func(what string) bool { return strings.HasPrefix(what, "device ") }) {
		rows = append(rows, command.Row("drives", fmt.Sprintf("%d, all well", len(s.Devices))))
	}
	for _, d := range s.Unhealthy {
		rows = append(rows, command.Row("NOT WELL", d))
	}
	if len(s.ToName) > 0 {
		say := "they name other drives: before the next start " + command.NameDevices(s.ToName)
		rows = append(rows, command.Row("settings", say))
	}
	for _, j := range s.Jobs {
		if j.State == "idle" {
			continue
		}
		progress := ""
		if j.Progress >= 0 {
			progress = fmt.Sprintf(", %.0f %%", 100*j.Progress)
		}
		rows = append(rows, command.Row("job "+j.Name, j.State+progress+" "+j.Detail))
	}
	command.Table(w, rows...)
}
