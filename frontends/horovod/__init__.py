"""The part of Horovod's API that is the same for every framework; it imports no framework.

The frontends import it from here, and export its public names as their own: `Average`, `barrier`, `broadcast_object`
and so on. Code that two frontends need belongs here if it does not depend on a tensor's type; names, defaults and
errors must stay those of Horovod 0.28. Each module lists its names for the frontends in `__all__`.
"""

from frontends.horovod.agreement import *  # noqa: F403
from frontends.horovod.arguments import *  # noqa: F403
from frontends.horovod.basics import *  # noqa: F403
from frontends.horovod.calls import *  # noqa: F403
from frontends.horovod.compression import *  # noqa: F403
from frontends.horovod.elastic import *  # noqa: F403
from frontends.horovod.errors import *  # noqa: F403
from frontends.horovod.feedback import *  # noqa: F403
from frontends.horovod.handles import *  # noqa: F403
from frontends.horovod.library import *  # noqa: F403
from frontends.horovod.names import *  # noqa: F403
from frontends.horovod.ops import *  # noqa: F403
from frontends.horovod.run import *  # noqa: F403
from frontends.horovod.splits import *  # noqa: F403
