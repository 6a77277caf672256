#include <stdio.h>
#include <stdlib.h>
#include <hiredis/hiredis.h>

int main(void) {
    const char *port = getenv("REDIS_PORT");
    redisContext *context = redisConnect("127.0.0.1", port ? atoi(port) : 6379);
    if (context == NULL || context->err) {
        fprintf(stderr, "%s\n", context ? context->errstr : "out of memory");
        return 1;
    }

    redisReply *decision = redisCommand(context, "TB.TAKE %s %d %s", "user:42", 5, "5/10s");

    if (decision == NULL) {
        fprintf(stderr, "%s\n", context->errstr);
        return 1;
    }
    if (decision->type != REDIS_REPLY_ARRAY || decision->elements != 4) {
        fprintf(stderr, "%s\n", decision->type == REDIS_REPLY_ERROR ? decision->str : "not a decision");
        return 1;
    }
    printf("allowed=%lld remaining=%lld retry_after_ms=%lld reset_after_ms=%lld\n",
           decision->element[0]->integer, decision->element[1]->integer,
           decision->element[2]->integer, decision->element[3]->integer);
    freeReplyObject(decision);
    redisFree(context);
    return 0;
}
