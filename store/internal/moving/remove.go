package moving

import (
	"context"
	"os"

	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/report"
)

// Remove drains a device and takes it out of the store. With Force, durable blocks
// that cannot be read any more are given up. A block device is wiped where it can be
// written, a file is removed; its index is not used again.
func (m *Mover) Remove(ctx context.Context, name string, o report.MoveOptions) (report.Progress, error) {
	const op = "remove device"
	d, err := m.enterOf(ctx, op, name, o)
	if err != nil {
		return report.Progress{}, err
	}
	defer m.Gate.Leave()
	p, err := m.drain(ctx, op, d, o)
	if err != nil || o.DryRun {
		return p, err
	}
	if err := m.Members.Take(ctx, op); err != nil {
		return p, err
	}
	defer m.Members.Give()
	if !d.Retired.Load() || len(m.Space.GroupsOf(d)) > 0 {
		return p, errKept(op, d)
	}
	if err := m.Space.AwaitLeft(ctx, op, d, o.Force); err != nil {
		return p, err
	}
	row := m.Space.RowOf(d)
	row.State = catalog.DeviceRemoved
	b := m.Catalog.NewBatch()
	b.PutDevice(&row)
	if err := m.Catalog.Commit(m.Context, b, true); err != nil {
		return p, err
	}
	d.Removed.Store(true)
	m.Members.Restamp()
	if d.Condition() < health.Fenced {
		ctx, cancel := context.WithTimeout(ctx, m.OpTimeout)
		defer cancel()
		if err := segio.Wipe(ctx, m.Space.Durably(d)); err != nil {
			m.Log.Warn("removed device not wiped: clear its first 64 KiB before it is used again", "device", d.Path, "error", err)
		} else if st, err := os.Lstat(d.Path); err == nil && st.Mode().IsRegular() && !d.Dev.Info().Raw && d.Dev.Info().Path == d.Path {
			if err := os.Remove(d.Path); err != nil {
				m.Log.Warn("file of a removed device left behind", "device", d.Path, "error", err)
			}
		}
	}
	m.Log.Info("device removed", "device", d.Index, "path", d.Path, "serial", d.Serial)
	m.Background.Go(func() { m.Space.LetGo(d) })
	return p, nil
}
