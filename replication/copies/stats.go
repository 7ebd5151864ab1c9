package copies

import "github.com/skepkv/skep"

// AddStats adds what a node says of itself. Its work, devices and memory have the node's name before theirs.
func AddStats(to, of *skep.Stats, name string) {
	to.Simulated = to.Simulated || of.Simulated
	to.FreeGroups += of.FreeGroups
	to.Groups += of.Groups
	for _, x := range []struct {
		to *int64
		of int64
	}{
		{&to.Blocks, of.Blocks}, {&to.BlockBytes, of.BlockBytes}, {&to.CapacityBytes, of.CapacityBytes}, {&to.DeviceBytes, of.DeviceBytes},
		{&to.RoomBytes, of.RoomBytes},
		{&to.PutBlocks, of.PutBlocks}, {&to.PutBytes, of.PutBytes}, {&to.PutExists, of.PutExists}, {&to.PutDiffers, of.PutDiffers},
		{&to.RestoredBlocks, of.RestoredBlocks}, {&to.RestoredBytes, of.RestoredBytes}, {&to.CopiedBytes, of.CopiedBytes},
		{&to.JoinedBytes, of.JoinedBytes}, {&to.KeptBytes, of.KeptBytes}, {&to.BrokenPromises, of.BrokenPromises},
		{&to.Overloaded, of.Overloaded}, {&to.Evicted, of.Evicted}, {&to.EvictedUnread, of.EvictedUnread},
		{&to.MovedBytes, of.MovedBytes}, {&to.Damaged, of.Damaged}, {&to.LeasedBytes, of.LeasedBytes},
	} {
		*x.to += x.of
	}
	for _, x := range []struct{ to, of map[string]int64 }{{to.PutDeclined, of.PutDeclined}, {to.RestoreTiers, of.RestoreTiers}} {
		for k, v := range x.of {
			x.to[k] += v
		}
	}
	for _, w := range of.Work {
		w.Name = name + ": " + w.Name
		to.Work = append(to.Work, w)
	}
	for _, d := range of.Devices {
		d.Index, d.Path = len(to.Devices), name+":"+d.Path
		to.Devices = append(to.Devices, d)
	}
	for _, path := range of.ToName {
		to.ToName = append(to.ToName, name+":"+path)
	}
	for _, m := range of.Memory {
		m.Name = name + ": " + m.Name
		to.Memory = append(to.Memory, m)
	}
}
