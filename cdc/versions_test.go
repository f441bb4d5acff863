package cdc_test

import (
	"strconv"
	"testing"

	"github.com/outboxrelay/relay/internal/testenv"
)

// TestVersions repeats what may differ from one PostgreSQL version to the next on every one that is supported, beside
// the one that all tests run on: what the server sends, which positions it accepts and keeps, which states a slot can
// be in, how it stops and comes back. Tests that name versions themselves are not here.
func TestVersions(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the tests run on one version")
	}
	for _, major := range testenv.Majors(t) {
		if major == 0 || major == testenv.PostgresMajor(t, 0).Major() {
			continue
		}
		t.Run(strconv.Itoa(major), func(t *testing.T) {
			t.Parallel()
			testenv.OnMajor(t, major)
			for _, c := range []struct {
				name string
				test func(*testing.T)
			}{
				{"CommitOrder", TestStream_CommitOrder},
				{"OnlyWhatCommitted", TestStream_OnlyWhatCommitted},
				{"IdleRestartAddsNothing", TestStream_IdleRestartAddsNothing},
				{"KeepaliveConfirmsNothingUnacknowledged", TestStream_KeepaliveConfirmsNothingUnacknowledged},
				{"IdleOutboxOnBusyServer", TestStream_IdleOutboxOnBusyServer},
				{"StandbyTakesOver", TestStream_StandbyTakesOver},
				{"StandbyIsQuiet", TestStream_StandbyIsQuiet},
				{"WrittenBeforeSaid", TestStream_WrittenBeforeSaid},
				{"ServerMayStop", TestStream_ServerMayStop},
				{"ServerCrash", TestStream_ServerCrash},
				{"WalsenderTerminated", TestStream_WalsenderTerminated},
				{"SlotLost", TestStream_SlotLost},
				{"LostWhileStreaming", TestRecover_LostWhileStreaming},
				{"Recover", TestRecover},
				{"PromotionWithoutSlot", TestPromotion_WithoutSlot},
				{"BacklogBeforeTheStream", TestBacklog_BeforeTheStream},
				{"BacklogNoWriterIsBetween", TestBacklog_NoWriterIsBetween},
				{"ChangingTable", TestMapping_ChangingTable},
				{"SeveralTables", TestMapping_SeveralTables},
				{"Emit", TestMessages_Emit},
				{"Foreign", TestMessages_Foreign},
				{"EnsurePublication", TestEnsure_Publication},
			} {
				t.Run(c.name, c.test)
			}
		})
	}
}
