package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// Errors that end a session. Whoever runs the sink drops everything and resumes from the slot, which takes a new
// producer epoch.
var (
	// ErrFenced is returned by Run when another owner has taken the producer's identity.
	ErrFenced = errors.New("sink: another producer has taken over this relay's transactional id")
	// ErrSequence is returned by Run when the broker's record of this producer does not fit what was sent.
	ErrSequence = errors.New("sink: the broker's record of this producer does not fit")
	// ErrClosed is returned by Accept when Run has already returned without an error.
	ErrClosed = errors.New("sink: closed")
)

// class says what a lane does after a try.
type class int

const (
	success   class = iota
	transient       // send the same bytes again, with backoff, for ever
	missing         // as transient, more slowly: the topic or partition does not exist
	denied          // the broker refuses our principal: again every Config.Recheck
	poison          // the record's own fault: split, and halt at the guilty one
	fatal           // the session is over
)

// reason is a class in finer grain, for counting. reasonNames is the closed set of its names.
type reason int

const (
	reasonNetwork reason = iota
	reasonTimeout
	reasonLeader
	reasonReplicas
	reasonCoordinator
	reasonMissing
	reasonDenied
	reasonPoison
	reasonBroker
	reasonFenced
	reasonSequence
	reasonDatabase
	reasonCount
)

var reasonNames = [reasonCount]string{
	"network", "timeout", "leader", "replicas", "coordinator", "topic_missing", "denied", "poison", "broker",
	"fenced", "sequence", "database",
}

type verdict struct {
	class  class
	reason reason
	open   bool  // nobody knows whether the batch was appended
	ends   error // for class fatal: ErrFenced or ErrSequence

	patient bool // the other side answers, and has a reason to be asked less often
}

// verdictOf is the one place that decides what an error of a Publisher means; the table in the package's
// documentation is its specification. resent says that an earlier try of the same batch ended open: only then
// does "duplicate" mean that it is there.
//
// What it does not know is transient and open: the same bytes again can do no harm and lose nothing.
func verdictOf(err error, resent bool) verdict {
	if err == nil {
		return verdict{class: success}
	}
	var fault *Fault
	var code kafka.Error
	var timeout net.Error
	switch {
	case errors.As(err, &fault):
		return fault.verdict()
	case errors.As(err, &code):
		return verdictOfCode(code, resent)
	case refusedConnection(err):
		return verdict{class: denied, reason: reasonDenied}
	case errors.Is(err, protocol.ErrNoLeader):
		return verdict{class: transient, reason: reasonLeader}
	case errors.Is(err, protocol.ErrNoTopic), errors.Is(err, protocol.ErrNoPartition):
		return verdict{class: missing, reason: reasonMissing}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return verdict{class: transient, reason: reasonTimeout, open: true}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, new(*net.OpError)):
		return verdict{class: transient, reason: reasonNetwork, open: true}
	}
	return verdict{class: transient, reason: reasonBroker, open: true}
}

// operationNotAttempted answers for a partition whose request failed because of another one. (kafka-go knows the
// number by an older name.)
const operationNotAttempted kafka.Error = 55

func verdictOfCode(code kafka.Error, resent bool) verdict {
	switch code {
	case kafka.NotLeaderForPartition, kafka.LeaderNotAvailable, kafka.FencedLeaderEpoch, kafka.UnknownLeaderEpoch,
		kafka.ReplicaNotAvailable, kafka.BrokerNotAvailable:
		return verdict{class: transient, reason: reasonLeader}
	case kafka.NotEnoughReplicas:
		return verdict{class: transient, reason: reasonReplicas}
	case kafka.NotEnoughReplicasAfterAppend:
		return verdict{class: transient, reason: reasonReplicas, open: true}
	case kafka.RequestTimedOut:
		return verdict{class: transient, reason: reasonTimeout, open: true}
	case kafka.NetworkException:
		return verdict{class: transient, reason: reasonNetwork, open: true}
	case kafka.GroupLoadInProgress, kafka.GroupCoordinatorNotAvailable, kafka.NotCoordinatorForGroup,
		kafka.ConcurrentTransactions, kafka.InvalidTransactionState, operationNotAttempted:
		// A transaction is open on the producer only while it fences; such an answer appends nothing.
		return verdict{class: transient, reason: reasonCoordinator}
	case kafka.UnknownTopicOrPartition, kafka.UnknownTopicID, kafka.InconsistentTopicID:
		return verdict{class: missing, reason: reasonMissing}
	case kafka.TopicAuthorizationFailed, kafka.GroupAuthorizationFailed, kafka.ClusterAuthorizationFailed,
		kafka.TransactionalIDAuthorizationFailed, kafka.SASLAuthenticationFailed, kafka.UnsupportedSASLMechanism,
		kafka.IllegalSASLState, kafka.SecurityDisabled:
		return verdict{class: denied, reason: reasonDenied}
	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge, kafka.InvalidRecord, kafka.InvalidTopic,
		kafka.InvalidTimestamp:
		return verdict{class: poison, reason: reasonPoison}
	case kafka.DuplicateSequenceNumber:
		if resent {
			return verdict{class: success}
		}
		return verdict{class: fatal, reason: reasonSequence, ends: ErrSequence}
	case kafka.OutOfOrderSequenceNumber, kafka.UnknownProducerId, kafka.InvalidProducerIDMapping:
		return verdict{class: fatal, reason: reasonSequence, ends: ErrSequence}
	case kafka.InvalidProducerEpoch, kafka.ProducerFenced:
		return verdict{class: fatal, reason: reasonFenced, ends: ErrFenced}
	}
	return verdict{class: transient, reason: reasonBroker, open: true}
}

// describe says for people what an error of a Publisher is. kafka-go's own texts speak of groups and offsets.
func describe(err error) string {
	var code kafka.Error
	if !errors.As(err, &code) {
		return err.Error()
	}
	name := code.Title()
	switch code {
	case kafka.GroupLoadInProgress:
		name = "Coordinator Load In Progress"
	case kafka.GroupCoordinatorNotAvailable:
		name = "Coordinator Not Available"
	case kafka.NotCoordinatorForGroup:
		name = "Not Coordinator"
	case operationNotAttempted:
		name = "Operation Not Attempted"
	}
	return fmt.Sprintf("Kafka answers %s (%d)", name, int(code))
}
