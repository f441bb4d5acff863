<?php
// A listener in the shape that Laravel's queue calls: handle() unpacks the event and calls a service that is safe to
// repeat. It needs no framework. In Laravel it implements ShouldQueue, and $db is DB::connection()->getPdo().
declare(strict_types=1);

final class PostPublished
{
    /** @param int[] $subscribers */
    public function __construct(public int $post, public string $title, public array $subscribers, public string $occurredAt) {}
}

final class NotifySubscribers
{
    public function __construct(private PDO $db, private Ledger $ledger, private string $mailUrl) {}

    /** @return iterable<array{string, string, string, string}> event key, recipient, channel, outcome */
    public function handle(PostPublished $event): iterable
    {
        $key = Keys::event('scheduled-post-published', (string) $event->post); // never the class's name, never a new UUID
        foreach ($event->subscribers as $user) {
            $to = Keys::recipient('user', (string) $user);
            yield [$key, $to, 'database', $this->ledger->once($key, $to, 'database', $event->occurredAt, function (PDO $db) use ($key, $to, $event) {
                $db->prepare("INSERT INTO ledger.notifications (event_key, recipient, type, data) VALUES (?, ?, 'post', ?)")
                    ->execute([$key, $to, json_encode(['post' => $event->post])]);
            })];
            yield [$key, $to, 'email', $this->ledger->deliver($key, $to, 'email', $event->occurredAt,
                eligible: fn () => $this->subscriber($user)['subscribed'] ? null : 'not subscribed', // now, not when the event was written
                send: fn (string $providerKey, float $seconds) => $this->mail($this->subscriber($user)['email'], $event->title, $providerKey, $seconds))];
        }
        // The queue may delete the job now: every row is in the ledger. busy or an exception must come again; without a
        // worker that calls claim_due, release a job whose outcome is failed or not_due.
    }

    private function subscriber(int $user): array
    {
        $statement = $this->db->prepare('SELECT email, subscribed FROM subscribers WHERE id = ?');
        $statement->execute([$user]);
        return $statement->fetch(PDO::FETCH_ASSOC) ?: ['email' => '', 'subscribed' => false];
    }

    private function mail(string $to, string $subject, string $providerKey, float $seconds): string
    {
        $context = stream_context_create(['http' => [
            'method' => 'POST', 'timeout' => max($seconds, 0.001), 'ignore_errors' => true, 'content' => json_encode(['to' => $to, 'subject' => $subject]),
            'header' => "Content-Type: application/json\r\nIdempotency-Key: $providerKey\r\nConnection: close",
        ]]);
        $body = @file_get_contents($this->mailUrl, false, $context);
        $status = (int) (explode(' ', $http_response_header[0] ?? '')[1] ?? 0);
        return match (true) {
            $status === 429 => throw new Retry('mail API answered 429'), // it was not taken
            $status >= 400 && $status < 500 => throw new Permanent("mail API answered $status"),
            $status < 200 || $status > 299 => throw new RuntimeException("mail API answered $status"), // 0: not at all
            default => json_decode($body, true, flags: JSON_THROW_ON_ERROR)['id'],
        };
    }
}
